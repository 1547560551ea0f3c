import gzip
import math
import struct

import pytest
import torch

from lightning_mp.recipes.vision.idx import read_idx


def make_idx(shape, *, magic=None, num_data=None):
    """Bytes of an IDX file whose elements count up modulo 251."""
    num_data = math.prod(shape) if num_data is None else num_data
    magic = bytes([0, 0, 8, len(shape)]) if magic is None else magic
    return magic + struct.pack(f">{len(shape)}I", *shape) + bytes(i % 251 for i in range(num_data))


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("shape", [(1,), (103,), (7, 5, 3), (13, 28, 28)])
def test_reads_what_was_written(tmp_path, shape, suffix):
    path = tmp_path / f"file-ubyte{suffix}"
    content = make_idx(shape)
    path.write_bytes(gzip.compress(content) if suffix else content)
    tensor = read_idx(path, num_dims=len(shape))
    expected = torch.arange(math.prod(shape)).remainder(251).to(torch.uint8).reshape(shape)
    assert tensor.dtype == torch.uint8
    assert torch.equal(tensor, expected)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes; expected a magic number of 4 bytes"),
        (b"\0\0\x08", "3 bytes; expected a magic number of 4 bytes"),
        (
            make_idx((2, 2, 2), magic=b"\x89PNG"),
            "magic number = 0x89504E47; expected 0x00000803",
        ),
        (
            make_idx((2, 2, 2), magic=b"\0\0\x0d\x03"),
            r"element type = 0x0D \(float32\); expected 0x08",
        ),
        (
            make_idx((2, 2, 2), magic=b"\0\0\x77\x03"),
            r"element type = 0x77 \(unknown\); expected 0x08",
        ),
        (make_idx((8,)), r"number of dimensions = 1 \(magic number 0x00000801\); expected 3"),
        (make_idx((2, 2, 2))[:15], "15 bytes; expected a header of 16"),
        (make_idx((0, 2, 2)), r"dimensions = \(0, 2, 2\); expected every one above 0"),
        (
            make_idx((7, 3, 3), num_data=62),
            r"62 data bytes; the header states \(7, 3, 3\) = 63; the file is truncated",
        ),
        (
            make_idx((7, 3, 3), num_data=64),
            r"64 data bytes; the header states \(7, 3, 3\) = 63; the file is too long",
        ),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_refuses_broken_file(tmp_path, content, message, suffix):
    path = tmp_path / f"broken-ubyte{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    with pytest.raises(ValueError, match=rf"broken-ubyte.*: {message}"):
        read_idx(path, num_dims=3)


@pytest.mark.parametrize(
    "content",
    [
        make_idx((2, 2, 2)),
        gzip.compress(make_idx((2, 2, 2)))[:-9],
        gzip.compress(make_idx((99, 2, 2)))[:30] + b"\xff" * 40,
    ],
    ids=["not compressed", "cut", "damaged"],
)
def test_refuses_broken_gzip(tmp_path, content):
    path = tmp_path / "broken.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.gz: not a whole gzip file"):
        read_idx(path, num_dims=3)


@pytest.mark.parametrize("name", ["absent", "absent.gz"])
def test_missing_file(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=name):
        read_idx(tmp_path / name, num_dims=3)

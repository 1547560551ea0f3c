import gzip
import struct

import pytest
import torch

from lightning_mp.recipes.vision.mnist import load_mnist


def write_idx(path, tensor):
    header = bytes([0, 0, 8, tensor.dim()]) + struct.pack(f">{tensor.dim()}I", *tensor.shape)
    content = header + tensor.to(torch.uint8).numpy().tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def folder(tmp_path):
    """103 training and 13 test images of 28x28; one file of each pair is compressed."""
    generator = torch.Generator().manual_seed(0)
    for part, count in (("train", 103), ("t10k", 13)):
        images = torch.randint(256, (count, 28, 28), generator=generator)
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", torch.arange(count) % 10)
    return tmp_path


def test_loads_both_parts(folder):
    train, test = load_mnist(folder)
    assert train.images.shape == (103, 28, 28)
    assert test.images.shape == (13, 28, 28)
    assert train.labels.dtype == torch.int64
    assert torch.equal(test.labels, torch.arange(13) % 10)


def test_plain_file_goes_before_gz(folder):
    write_idx(folder / "t10k-labels-idx1-ubyte.gz", torch.full((13,), 9))
    assert torch.equal(load_mnist(folder)[1].labels, torch.arange(13) % 10)


def test_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data_dir = .*absent; expected a folder"):
        load_mnist(tmp_path / "absent")


@pytest.mark.parametrize(
    "name",
    [
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ],
)
def test_missing_file(folder, name):
    for path in folder.glob(f"{name}*"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=rf"no file {name}; expected {name} or {name}\.gz"):
        load_mnist(folder)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "train-labels-idx1-ubyte",
            torch.zeros(102),
            r"train-labels.*: 102 labels; expected 103, .*train-images-idx3-ubyte\.gz",
        ),
        ("t10k-labels-idx1-ubyte", torch.full((13,), 26), "t10k-labels.*: label = 26; allowed 0"),
        (
            "t10k-images-idx3-ubyte",
            torch.zeros(13, 8, 7),
            r"test images of \(8, 7\) pixels; expected \(28, 28\)",
        ),
    ],
)
def test_refuses_files_that_do_not_fit(folder, name, tensor, message):
    write_idx(folder / name, tensor)
    with pytest.raises(ValueError, match=message):
        load_mnist(folder)

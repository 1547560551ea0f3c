"""Reader of IDX, the file format of MNIST and Fashion-MNIST.

An IDX file is two zero bytes, one byte for the element type, one byte for the number of
dimensions, one big-endian 32-bit integer per dimension, then the elements in C order.

Reference:
    Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits".
"""

import gzip
import math
import zlib
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["read_idx"]

_UNSIGNED_BYTE = 0x08
_TYPE_NAMES = {
    0x08: "uint8",
    0x09: "int8",
    0x0B: "int16",
    0x0C: "int32",
    0x0D: "float32",
    0x0E: "float64",
}
_DIMENSION_BYTES = 4


def read_idx(path: Path | str, num_dims: int) -> Tensor:
    """Read one IDX file of unsigned bytes.

    Args:
        path: The file, plain, or gzip if its name ends in ``.gz``.
        num_dims: Number of dimensions the file must have: 3 for images, 1 for labels.

    Returns:
        uint8 tensor with the dimensions that the file states.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is not a whole IDX file of unsigned bytes with ``num_dims`` dimensions.

    Example:
        >>> images = read_idx("data/train-images-idx3-ubyte.gz", num_dims=3)  # doctest: +SKIP
    """
    path = Path(path)
    content = _read_bytes(path)
    shape = _parse_header(path, content, num_dims)
    header_bytes = 4 + _DIMENSION_BYTES * num_dims
    num_found, num_expected = len(content) - header_bytes, math.prod(shape)
    if num_found != num_expected:
        problem = "the file is truncated" if num_found < num_expected else "the file is too long"
        raise ValueError(
            f"{path}: {num_found} data bytes; the header states {shape} = {num_expected}; "
            f"{problem}, fetch it again"
        )
    # bytearray: torch warns about tensors over memory that cannot be written.
    return torch.frombuffer(bytearray(content[header_bytes:]), dtype=torch.uint8).reshape(shape)


def _read_bytes(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path}: not a whole gzip file ({error}); expected the .gz file as published; "
            "fetch it again"
        ) from error


def _parse_header(path: Path, content: bytes, num_dims: int) -> tuple[int, ...]:
    header_bytes = 4 + _DIMENSION_BYTES * num_dims
    expected_magic = f"0x0000{_UNSIGNED_BYTE:02X}{num_dims:02X}"
    if len(content) < 4:
        raise ValueError(f"{path}: {len(content)} bytes; expected a magic number of 4 bytes first")
    magic = f"0x{content[:4].hex().upper()}"
    if content[:2] != b"\0\0":
        raise ValueError(
            f"{path}: magic number = {magic}; expected {expected_magic}; not an IDX file"
        )
    if content[2] != _UNSIGNED_BYTE:
        name = _TYPE_NAMES.get(content[2], "unknown")
        raise ValueError(
            f"{path}: element type = 0x{content[2]:02X} ({name}); expected 0x08 (uint8); "
            "store the pixels and labels as unsigned bytes"
        )
    if content[3] != num_dims:
        raise ValueError(
            f"{path}: number of dimensions = {content[3]} (magic number {magic}); "
            f"expected {num_dims} ({expected_magic}); images and labels may be exchanged"
        )
    if len(content) < header_bytes:
        raise ValueError(
            f"{path}: {len(content)} bytes; expected a header of {header_bytes}; "
            "the file is truncated, fetch it again"
        )
    shape = tuple(
        int.from_bytes(content[start : start + _DIMENSION_BYTES], "big")
        for start in range(4, header_bytes, _DIMENSION_BYTES)
    )
    if 0 in shape:
        raise ValueError(
            f"{path}: dimensions = {shape}; expected every one above 0; the file is empty"
        )
    return shape

"""MNIST and Fashion-MNIST (or any set in their format) from a folder of four IDX files."""

from pathlib import Path

import torch

from lightning_mp.recipes.vision.idx import read_idx
from lightning_mp.recipes.vision.image_set import ImageSet

__all__ = ["load_mnist"]

_NUM_CLASSES = 10


def load_mnist(data_dir: Path | str) -> tuple[ImageSet, ImageSet]:
    """Load the training and the test part from the four usual files, each plain or ``.gz``.

    The names are ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``,
    ``t10k-images-idx3-ubyte`` and ``t10k-labels-idx1-ubyte``. A plain file goes before a ``.gz``.

    Args:
        data_dir: Folder of the files.

    Returns:
        Training part and test part, uint8 pixels from 0 to 255.

    Raises:
        FileNotFoundError: The folder or a file is missing.
        ValueError: A file is damaged, or the files do not fit each other.

    Example:
        >>> train, test = load_mnist("data/fashion-mnist")  # doctest: +SKIP
    """
    folder = Path(data_dir)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"data_dir = {folder}; expected a folder with the four IDX files of MNIST or "
            "Fashion-MNIST; create it, or leave data_dir out to use the digits of scikit-learn"
        )
    train, test = _load_part(folder, "train"), _load_part(folder, "t10k")
    if train.images.shape[1:] != test.images.shape[1:]:
        raise ValueError(
            f"{folder}: test images of {tuple(test.images.shape[1:])} pixels; expected "
            f"{tuple(train.images.shape[1:])} as in the training part; use files of one data set"
        )
    return train, test


def _load_part(folder: Path, part: str) -> ImageSet:
    images_path = _find_file(folder, f"{part}-images-idx3-ubyte")
    labels_path = _find_file(folder, f"{part}-labels-idx1-ubyte")
    images = read_idx(images_path, num_dims=3)
    labels = read_idx(labels_path, num_dims=1).to(torch.int64)
    if len(labels) != len(images):
        raise ValueError(
            f"{labels_path}: {len(labels)} labels; expected {len(images)}, the number of images "
            f"in {images_path.name}; use the two files of one data set"
        )
    if int(labels.max()) >= _NUM_CLASSES:
        raise ValueError(
            f"{labels_path}: label = {int(labels.max())}; allowed 0 to {_NUM_CLASSES - 1}; "
            "the file is damaged or of another data set"
        )
    return ImageSet(images, labels)


def _find_file(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(f"{folder}: no file {name}; expected {name} or {name}.gz; add it")

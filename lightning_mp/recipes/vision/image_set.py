"""A set of labelled grey images, and the split that keeps the share of every class."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["ImageSet", "stratified_split"]


@dataclass(frozen=True)
class ImageSet:
    """Grey images with one label each.

    Args:
        images: uint8 or float32 pixels of shape ``(count, height, width)``.
        labels: int64 classes of shape ``(count,)``.
    """

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def select(self, indices: Tensor) -> "ImageSet":
        """Return the images at some places.

        Args:
            indices: int64 places of shape ``(count,)``.

        Returns:
            A new set in the order of ``indices``.
        """
        return ImageSet(self.images[indices], self.labels[indices])


def stratified_split(
    image_set: ImageSet, num_held_out: int, *, seed: int
) -> tuple[ImageSet, ImageSet]:
    """Split a set in two with the same share of every class, up to one image per class.

    Args:
        image_set: The set to split.
        num_held_out: Number of images in the second part, at least 1 and less than all.
        seed: Seed of the split; the same seed gives the same split on every machine.

    Returns:
        The remaining and the held-out part; disjoint, together the whole set.

    Raises:
        ValueError: One of the two parts would be empty.

    Example:
        >>> digits = ImageSet(torch.zeros(20, 8, 8), torch.arange(20) % 2)
        >>> train, test = stratified_split(digits, 4, seed=0)
        >>> len(train), test.labels.bincount().tolist()
        (16, [2, 2])
    """
    if not 0 < num_held_out < len(image_set):
        raise ValueError(
            f"num_held_out = {num_held_out}; allowed 1 to {len(image_set) - 1}, as there are "
            f"{len(image_set)} images; change the share that is held out"
        )
    order = _interleave_classes(image_set.labels, seed)
    return image_set.select(order[num_held_out:]), image_set.select(order[:num_held_out])


def _interleave_classes(labels: Tensor, seed: int) -> Tensor:
    """Return a random order in which every stretch has about the share of each class.

    Image ``k`` of a class with ``c`` images gets the place ``(k + 0.5) / c``; sorting all images
    by place spreads every class evenly.
    """
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    places = torch.empty(len(labels), dtype=torch.float64)
    for label in labels.unique():
        is_label = labels[shuffled] == label
        count = int(is_label.sum())
        places[is_label] = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return shuffled[places.argsort(stable=True)]

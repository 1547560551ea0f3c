"""The 1,797 real handwritten digits of scikit-learn, 8x8 pixels; they need no download.

Reference:
    E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI repository, 1998.
"""

from typing import Any

import torch

from lightning_mp.recipes.vision.image_set import ImageSet, stratified_split

__all__ = ["NUM_TEST_DIGITS", "load_digits"]

NUM_TEST_DIGITS = 360
"""Number of digits that are held out for testing: a fifth of all."""


def load_digits(split_seed: int) -> tuple[ImageSet, ImageSet]:
    """Load scikit-learn's digits, split into a training and a test part.

    Args:
        split_seed: Seed of the split.

    Returns:
        Training part (1,437 images) and test part (360), uint8 pixels from 0 to 16.

    Raises:
        ImportError: scikit-learn is not installed.
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise ImportError(
            "data_dir = None asks for the digits of scikit-learn, which is not installed; "
            "run pip install lightning_mp[vision], or set data_dir to a folder of IDX files"
        ) from error
    # Any: scikit-learn has no types, and what is inferred is wrong.
    bunch: Any = datasets.load_digits()
    images = torch.from_numpy(bunch["images"]).to(torch.uint8)
    labels = torch.from_numpy(bunch["target"]).to(torch.int64)
    return stratified_split(ImageSet(images, labels), NUM_TEST_DIGITS, seed=split_seed)

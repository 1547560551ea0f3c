"""DataModule over small grey images: scikit-learn's digits, or a folder of IDX files."""

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp.lightning_api import LightningDataModule
from lightning_mp.recipes.vision.digits import load_digits
from lightning_mp.recipes.vision.image_set import ImageSet, stratified_split
from lightning_mp.recipes.vision.mnist import load_mnist

__all__ = ["ImageDataModule"]

_Batch = tuple[Tensor, ...]


class ImageDataModule(LightningDataModule):
    """Serve real grey images of 10 classes, split into training, validation and test images.

    Without ``data_dir`` the images are the 1,797 digits (8x8) that come with scikit-learn:
    1,293 for training, 144 for validation, 360 for testing at the default ``val_fraction``.
    With ``data_dir`` they are the IDX files of MNIST, Fashion-MNIST or any set in that format;
    the published test part is the test set. All splits keep the share of every class and depend
    on ``split_seed`` alone, never on the seed of the run.

    A batch is a pair: float32 images of shape ``(batch, 1, height, width)``, with mean 0 and
    standard deviation 1 over the training images, and int64 labels of shape ``(batch,)``.

    Args:
        data_dir: Folder of the four IDX files, each plain or ``.gz``; ``None`` uses the digits.
        batch_size: Number of images in a batch of one process, at least 1.
        val_fraction: Share of the training part that is held out for validation, above 0, below 1.
        split_seed: Seed of the splits.
        num_workers: Number of loader processes per dataloader; 0 loads in the main process.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> data = ImageDataModule(batch_size=16)
        >>> data.setup("fit")
        >>> images, labels = next(iter(data.train_dataloader()))
        >>> images.shape
        torch.Size([16, 1, 8, 8])
    """

    def __init__(
        self,
        data_dir: str | None = None,
        batch_size: int = 64,
        *,
        val_fraction: float = 0.1,
        split_seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(
                f"batch_size = {batch_size}; allowed 1 or more; give a positive number"
            )
        if num_workers < 0:
            raise ValueError(f"num_workers = {num_workers}; allowed 0 or more; use 0 for none")
        if not 0 < val_fraction < 1:
            raise ValueError(
                f"val_fraction = {val_fraction}; allowed above 0 and below 1; 0.1 is usual"
            )
        self.save_hyperparameters()
        self.data_dir = data_dir
        self.batch_size = batch_size
        self.val_fraction = val_fraction
        self.split_seed = split_seed
        self.num_workers = num_workers
        self._datasets: dict[str, TensorDataset] = {}

    def setup(self, stage: str | None = None) -> None:
        """Load and split the images once.

        Args:
            stage: What the Trainer does next; all splits are small and loaded at any stage.

        Raises:
            FileNotFoundError: ``data_dir`` or one of its files is missing.
            ValueError: A file is damaged, or too small to be split.
            ImportError: The digits are asked for and scikit-learn is not installed.
        """
        if self._datasets:
            return
        part, test = load_mnist(self.data_dir) if self.data_dir else load_digits(self.split_seed)
        num_val = round(self.val_fraction * len(part))
        train, val = stratified_split(part, num_val, seed=self.split_seed)
        pixels = train.images.float()
        mean, std = pixels.mean(), pixels.std().clamp_min(1e-6)
        self._datasets = {
            name: _to_dataset(image_set, mean, std)
            for name, image_set in (("train", train), ("val", val), ("test", test))
        }

    def train_dataloader(self) -> DataLoader[_Batch]:
        """Return the training images, shuffled anew in every epoch."""
        return self._dataloader("train", shuffle=True)

    def val_dataloader(self) -> DataLoader[_Batch]:
        """Return the validation images in fixed order."""
        return self._dataloader("val")

    def test_dataloader(self) -> DataLoader[_Batch]:
        """Return the test images in fixed order."""
        return self._dataloader("test")

    def predict_dataloader(self) -> DataLoader[_Batch]:
        """Return the test images in fixed order."""
        return self._dataloader("test")

    def _dataloader(self, name: str, *, shuffle: bool = False) -> DataLoader[_Batch]:
        return DataLoader(
            self._datasets[name],
            batch_size=self.batch_size,
            shuffle=shuffle,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            pin_memory=_has_pinnable_accelerator(),
        )


def _to_dataset(image_set: ImageSet, mean: Tensor, std: Tensor) -> TensorDataset:
    images = (image_set.images.float() - mean) / std
    return TensorDataset(images.unsqueeze(1), image_set.labels)


def _has_pinnable_accelerator() -> bool:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    # torch warns about pinned memory on mps, which shares its memory with the CPU.
    return accelerator is not None and accelerator.type != "mps"

"""A small model and data set to start from: points on three spirals."""

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split
from torchmetrics.classification import MulticlassAccuracy

NUM_CLASSES = 3


class SpiralClassifier(L.LightningModule):
    """Tell from a point in the plane which spiral it lies on.

    Args:
        hidden_size: Width of the two hidden layers.
        learning_rate: Learning rate of AdamW.
    """

    def __init__(self, hidden_size: int = 128, learning_rate: float = 3e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.learning_rate = learning_rate
        self.layers = nn.Sequential(
            nn.Linear(2, hidden_size),
            nn.ReLU(),
            nn.Linear(hidden_size, hidden_size),
            nn.LayerNorm(hidden_size),
            nn.ReLU(),
            nn.Linear(hidden_size, NUM_CLASSES),
        )
        self.accuracy = MulticlassAccuracy(NUM_CLASSES)

    def forward(self, points: Tensor) -> Tensor:
        """Compute the logits, shape ``(batch, 3)``, of points of shape ``(batch, 2)``."""
        return self.layers(points)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Compute the loss of one batch."""
        points, labels = batch
        loss = nn.functional.cross_entropy(self(points), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Log the accuracy on the validation set."""
        self._log_accuracy("val_accuracy", batch)

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Log the accuracy on the test set."""
        self._log_accuracy("test_accuracy", batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Train with AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)

    def _log_accuracy(self, name: str, batch: list[Tensor]) -> None:
        points, labels = batch
        self.accuracy(self(points), labels)
        self.log(name, self.accuracy, prog_bar=True)


class SpiralData(L.LightningDataModule):
    """Points on three noisy spirals; 80 % for training, 10 % for validation, 10 % for the test.

    Args:
        num_samples: Number of points.
        batch_size: Samples per batch.
    """

    def __init__(self, num_samples: int = 3000, batch_size: int = 64) -> None:
        super().__init__()
        self.num_samples = num_samples
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        """Make the points; the same ones in every process."""
        generator = torch.Generator().manual_seed(0)
        labels = torch.arange(self.num_samples) % NUM_CLASSES
        radius = torch.rand(self.num_samples, generator=generator)
        noise = 0.2 * torch.randn(self.num_samples, generator=generator)
        angle = 4 * radius + labels * 2 * torch.pi / NUM_CLASSES + noise
        points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
        self.train_set, self.val_set, self.test_set = random_split(
            TensorDataset(points, labels), [0.8, 0.1, 0.1], generator=generator
        )

    def train_dataloader(self) -> DataLoader:
        """Load the training points in random order."""
        return self._loader(self.train_set, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        """Load the validation points."""
        return self._loader(self.val_set)

    def test_dataloader(self) -> DataLoader:
        """Load the test points."""
        return self._loader(self.test_set)

    def _loader(self, dataset: Dataset, shuffle: bool = False) -> DataLoader:
        return DataLoader(dataset, batch_size=self.batch_size, shuffle=shuffle)

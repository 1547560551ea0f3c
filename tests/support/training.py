"""A small module, GAN and Trainer for whole fits on the CPU."""

import copy
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp.precision import AmpPrecision


def make_plugin(level: str, **kwargs: Any) -> AmpPrecision:
    """Build the plugin of a level string such as ``"O2-bf16"``."""
    opt_level, _, half = level.partition("-")
    arguments: dict[str, Any] = {"opt_level": opt_level, "half_dtype": half or "fp16"}
    return AmpPrecision(**arguments, **kwargs)


class SmallModule(L.LightningModule):
    """A regression net with a norm layer, a step-wise schedule and a record of what it saw."""

    def __init__(
        self, optimizer: str = "AdamW", lr: float = 1e-2, norm: str = "layer", **options: Any
    ) -> None:
        super().__init__()
        torch.manual_seed(1)
        norms = {"layer": nn.LayerNorm(17), "batch": nn.BatchNorm1d(17), "none": nn.Identity()}
        self.net = nn.Sequential(nn.Linear(13, 17), norms[norm], nn.Tanh(), nn.Linear(17, 3))
        self.optimizer_name, self.lr, self.options = optimizer, lr, options
        self.losses: list[float] = []
        self.bad_batches: tuple[int, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = F.mse_loss(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss * float("inf") if batch_idx in self.bad_batches else loss

    def configure_optimizers(self) -> Any:
        optimizer_class = getattr(torch.optim, self.optimizer_name)
        optimizer = optimizer_class(self.parameters(), lr=self.lr, **self.options)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.97**step)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class ValidatedModule(SmallModule):
    """The same with the other three loops."""

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", F.mse_loss(self.net(batch[0]), batch[1]))

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self(batch[0])


class SmallGAN(L.LightningModule):
    """Two optimizers in manual optimisation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(5, 17), nn.ReLU(), nn.Linear(17, 13))
        self.discriminator = nn.Sequential(nn.Linear(13, 17), nn.ReLU(), nn.Linear(17, 1))
        self.clip: float | None = None
        self.bad_discriminator_batches: tuple[int, ...] = ()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        generator_optimizer, discriminator_optimizer = self.optimizers()
        noise = torch.randn(len(batch[0]), 5, generator=torch.Generator().manual_seed(batch_idx))
        self.toggle_optimizer(generator_optimizer)
        self._update(generator_optimizer, self._loss(self.generator(noise), real=1.0))
        self.untoggle_optimizer(generator_optimizer)
        self.toggle_optimizer(discriminator_optimizer)
        loss = self._loss(batch[0], real=1.0)
        loss = loss + self._loss(self.generator(noise).detach(), real=0.0)
        if batch_idx in self.bad_discriminator_batches:
            loss = loss * float("inf")
        self._update(discriminator_optimizer, loss)
        self.untoggle_optimizer(discriminator_optimizer)

    def configure_optimizers(self) -> Any:
        return (
            torch.optim.Adam(self.generator.parameters(), lr=1e-3),
            torch.optim.Adam(self.discriminator.parameters(), lr=1e-3),
        )

    def _loss(self, images: Tensor, real: float) -> Tensor:
        logits = self.discriminator(images)
        return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, real))

    def _update(self, optimizer: Any, loss: Tensor) -> None:
        optimizer.zero_grad()
        self.manual_backward(loss)
        if self.clip is not None:
            self.clip_gradients(optimizer, self.clip, "norm")
        optimizer.step()


def make_loader(num_samples: int = 56, batch_size: int = 7, seed: int = 0) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num_samples, 13, generator=generator)
    targets = inputs[:, :3].sin() + inputs[:, 3:6]
    return DataLoader(TensorDataset(inputs, targets), batch_size=batch_size)


def make_trainer(
    folder: Path, precision: str | AmpPrecision = "32-true", **kwargs: Any
) -> L.Trainer:
    if isinstance(precision, str) and precision.startswith("O"):
        precision = make_plugin(precision)
    chosen: dict[str, Any] = {"precision": precision}
    if isinstance(precision, AmpPrecision):
        chosen = {"plugins": [precision]}
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "num_sanity_val_steps": 0,
        "default_root_dir": folder,
    }
    return L.Trainer(**{**defaults, **chosen, **kwargs})


def weights(module: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy({name: item.detach() for name, item in module.state_dict().items()})


def is_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) and first[name].dtype == second[name].dtype
        for name in first
    )


def fit(tmp_path: Path, precision: Any, module: Any = None, **kwargs: Any) -> tuple[Any, L.Trainer]:
    """Fit a module, and return it with its Trainer."""
    module = module or SmallModule()
    trainer = make_trainer(tmp_path, precision, **kwargs)
    trainer.fit(module, make_loader())
    return module, trainer

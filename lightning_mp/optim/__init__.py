"""Optimizers on the fused kernels, with the conventions and state dicts of ``torch.optim``."""

from lightning_mp.optim.fused_adam import FusedAdam
from lightning_mp.optim.fused_adamw import FusedAdamW
from lightning_mp.optim.fused_sgd import FusedSGD

__all__ = ["FusedAdam", "FusedAdamW", "FusedSGD"]

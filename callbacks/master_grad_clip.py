"""Gradient clipping on the true FP32 gradients, at every opt level and under stock precisions."""

from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_mp.amp.gradient_check import dense_values
from lightning_mp.amp.gradient_clip import ClipRule, clip_gradients_
from lightning_mp.lightning_api import Callback, LightningModule, MixedPrecision, Trainer
from lightning_mp.precision import AmpPrecision
from lightning_mp.trainer_check import require_lightning_trainer

__all__ = ["MasterGradClip", "clip_optimizer_gradients"]


def clip_optimizer_gradients(optimizer: Optimizer, rule: ClipRule) -> Tensor | None:
    """Clip the gradients of whatever an optimizer's parameter groups hold, in place.

    Args:
        optimizer: Any torch optimizer; its gradients must be unscaled.
        rule: What to clip by.

    Returns:
        The total norm before clipping as a float32 scalar, or ``None`` when clipping by value.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([3.0, 4.0])
        >>> clip_optimizer_gradients(torch.optim.SGD([weight], lr=0.1), ClipRule(max_norm=1.0))
        tensor(5.)
    """
    parameters = [item for group in optimizer.param_groups for item in group["params"]]
    gradients = [dense_values(item) for item in parameters if item.grad is not None]
    return clip_gradients_(gradients, rule)


class MasterGradClip(Callback):
    """Clip each optimizer's gradients before it steps.

    At O2 the gradients clipped are those of the FP32 masters; when nobody else reads them, the
    clipping is a factor inside the fused step and costs no pass of its own.

    Args:
        max_norm: Largest total norm of an optimizer's gradients; exclusive with ``clip_value``.
        clip_value: Largest absolute value of a gradient element.
        norm_type: Order of the norm, ``inf`` allowed.

    Raises:
        ValueError: Not exactly one limit is given, a number is out of its range, or (when training
            starts) the Trainer clips as well.

    Example:
        >>> callback = MasterGradClip(max_norm=1.0)
        >>> callback.rule
        ClipRule(max_norm=1.0, clip_value=None, norm_type=2.0)
    """

    # The precision plugin then does not hand out FP32 gradients for this hook's sake.
    reads_gradients = False

    def __init__(
        self,
        max_norm: float | None = None,
        clip_value: float | None = None,
        norm_type: float = 2.0,
    ) -> None:
        self.rule = ClipRule(max_norm=max_norm, clip_value=clip_value, norm_type=norm_type)

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        require_lightning_trainer(trainer, asked_by="MasterGradClip")
        if stage == "fit" and trainer.gradient_clip_val:
            raise ValueError(
                f"gradient_clip_val = {trainer.gradient_clip_val} and MasterGradClip would clip "
                "the same gradients twice. Keep one of the two: remove gradient_clip_val from "
                "the Trainer, or this callback."
            )

    @override
    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        plugin: Any = trainer.precision_plugin
        if isinstance(plugin, AmpPrecision):
            plugin.clip_by_rule(optimizer, self.rule)
            return
        _refuse_scaled_gradients(plugin, optimizer)
        clip_optimizer_gradients(optimizer, self.rule)


def _refuse_scaled_gradients(plugin: Any, optimizer: Optimizer) -> None:
    has_scaler = isinstance(plugin, MixedPrecision) and plugin.scaler is not None
    if has_scaler and getattr(optimizer, "_step_supports_amp_scaling", False):
        raise ValueError(
            f"{type(optimizer).__name__}(fused=True) unscales its gradients inside its own step "
            f"under precision = {plugin.precision!r}, after this callback. Use fused=False, "
            "bf16-mixed, or an opt level such as precision='O2'."
        )

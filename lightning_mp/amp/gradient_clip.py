"""Gradient clipping by norm or value on lists of gradients."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_mp.amp.gradient_stats import measure_gradients
from lightning_mp.kernels.reference import clip_coefficient, total_norm

__all__ = ["ClipRule", "clip_gradients_", "scale_gradients_"]


@dataclass(frozen=True)
class ClipRule:
    """How gradients are clipped: by the norm of all together or each element by value.

    Args:
        max_norm: Largest total norm, above 0; exclusive with ``clip_value``.
        clip_value: Largest absolute value of an element, above 0.
        norm_type: Order of the norm, above 0, ``inf`` allowed; used with ``max_norm`` only.

    Raises:
        ValueError: Not exactly one of the two limits is given, or a number is out of its range.
    """

    max_norm: float | None = None
    clip_value: float | None = None
    norm_type: float = 2.0

    def __post_init__(self) -> None:
        if (self.max_norm is None) == (self.clip_value is None):
            raise ValueError(
                f"max_norm = {self.max_norm}, clip_value = {self.clip_value}; exactly one of the "
                "two must be given. Choose max_norm to clip by the total norm or clip_value to "
                "clip each element."
            )
        for name in ("max_norm", "clip_value", "norm_type"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(
                    f"{name} = {value}; it must be a number above 0. Leave the clipping out to "
                    "train without it."
                )


@torch.no_grad()
def clip_gradients_(
    gradients: Sequence[Tensor], rule: ClipRule, *, like_fused: bool = False
) -> Tensor | None:
    """Clip gradients in place; no value is copied to the host.

    Args:
        gradients: Dense floating tensors of any shape; FP32 for exact norms of large models.
        rule: What to clip by.
        like_fused: Whether the L2 norm is that of a fused step, to the last bit, and not torch's.

    Returns:
        The total norm before clipping as a float32 scalar, or ``None`` when clipping by value.

    Example:
        >>> gradient = torch.tensor([3.0, 4.0])
        >>> clip_gradients_([gradient], ClipRule(max_norm=1.0))
        tensor(5.)
        >>> gradient
        tensor([0.6000, 0.8000])
    """
    if not gradients:
        return None if rule.max_norm is None else torch.zeros(())
    if rule.max_norm is None:
        assert rule.clip_value is not None
        torch._foreach_clamp_min_(list(gradients), -rule.clip_value)
        torch._foreach_clamp_max_(list(gradients), rule.clip_value)
        return None
    if like_fused and rule.norm_type == 2.0:
        stats = measure_gradients(gradients, max_norm=rule.max_norm)
        norm, coefficient = stats.norm, stats.factor
    else:
        norm = total_norm(gradients, rule.norm_type)
        coefficient = clip_coefficient(norm, rule.max_norm)
    scale_gradients_(gradients, coefficient)
    return norm


def scale_gradients_(gradients: Sequence[Tensor], factor: Tensor) -> None:
    """Multiply gradients in place by one scalar tensor, on whatever devices they are.

    Args:
        gradients: Dense floating tensors.
        factor: Float32 scalar; moved to each gradient's device.
    """
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        groups.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for (device, _), members in groups.items():
        torch._foreach_mul_(members, factor.to(device))

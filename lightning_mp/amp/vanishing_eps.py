"""An optimizer's eps that is 0 in float16."""

import warnings
from collections.abc import Sequence

import torch
from torch.optim import Optimizer

from lightning_mp.amp.opt_levels import OptLevelProperties

__all__ = ["warn_of_vanishing_eps"]


def warn_of_vanishing_eps(optimizers: Sequence[Optimizer], properties: OptLevelProperties) -> None:
    """Warn where an optimizer that steps in float16 would divide by 0.

    Args:
        optimizers: Optimizers of half weights without masters.
        properties: Resolved properties of the level.

    Warns:
        UserWarning: The eps of one of them vanishes.
    """
    smallest = torch.finfo(torch.float16).smallest_normal * torch.finfo(torch.float16).eps
    for optimizer in optimizers if properties.half_dtype == torch.float16 else []:
        given = [group.get("eps") for group in optimizer.param_groups]
        # Adafactor has a pair of another meaning.
        eps = min((item for item in given if isinstance(item, float)), default=1.0)
        if eps < smallest:
            warnings.warn(
                f"{type(optimizer).__name__}(eps={eps}) at {properties.opt_level} steps in "
                "float16, where this eps is 0 and the update divides by 0. Use eps=1e-4 or more, "
                "bfloat16, or O2, whose optimizer works in float32.",
                stacklevel=3,
            )

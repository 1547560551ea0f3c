"""Which optimizers can be stepped by the operations, and by which function."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.optim import SGD, Adam, AdamW, Optimizer

from lightning_mp.kernels.adam_group import adam_group_step_
from lightning_mp.kernels.sgd_group import sgd_group_step_
from lightning_mp.kernels.step_rows import StepInputs, StepRow

__all__ = ["CHOOSES_STATE_DTYPE", "GROUP_STEP", "GroupStep", "group_step_of"]

GroupStep = Callable[[dict[str, Any], Sequence[StepRow], StepInputs], None]

GROUP_STEP = "fused_group_step"
"""Attribute by which an optimizer class names the function; its subclasses do not inherit it."""

CHOOSES_STATE_DTYPE = "chooses_state_dtype"
"""Attribute of an optimizer whose state has a dtype of its own choice, not that of its weights."""

_TORCH: Mapping[type, GroupStep] = {
    Adam: adam_group_step_,
    AdamW: adam_group_step_,
    SGD: sgd_group_step_,
}


def group_step_of(optimizer: Optimizer) -> GroupStep | None:
    """Return the function that steps the groups of an optimizer.

    Args:
        optimizer: Any optimizer; a subclass may do anything in its step, so its class counts
            exactly.

    Returns:
        The function, or ``None`` if there is none.
    """
    cls = type(optimizer)
    own = vars(cls).get(GROUP_STEP)
    return _TORCH.get(cls) if own is None else own.__func__

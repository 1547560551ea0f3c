"""A step of one parameter group of Adam or AdamW."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_mp.kernels.adam import adam_step_
from lightning_mp.kernels.step_rows import StepInputs, StepRow, split_by_device, state_tensor

__all__ = ["ROUNDING_SEED", "STATE_DTYPE", "adam_group_step_", "fused_adam_group_step_"]

STATE_DTYPE = "state_dtype"
"""Entry of a parameter group: the dtype of its moments; float32 where it is missing."""

ROUNDING_SEED = "rounding_seed"
"""Entry of a parameter group: the seed of the roundings of its bfloat16 moments."""


def adam_group_step_(group: dict[str, Any], rows: Sequence[StepRow], inputs: StepInputs) -> None:
    """Update the weights of a parameter group by Adam, or by AdamW as the group says.

    Nothing is read on the host. The state is that of ``torch.optim.Adam(fused=True)``.

    Args:
        group: Parameter group of ``torch.optim.Adam`` or ``AdamW``, without ``amsgrad``.
        rows: The weights that have a gradient.
        inputs: What all groups have in common.
    """
    # Not as the group says: torch's groups may have been loaded from a state of ours.
    _step(group, rows, inputs, torch.float32)


def fused_adam_group_step_(
    group: dict[str, Any], rows: Sequence[StepRow], inputs: StepInputs
) -> None:
    """Do the same with moments in the dtype that the group names.

    Args:
        group: Parameter group of :class:`lightning_mp.optim.FusedAdam` or ``FusedAdamW``.
        rows: The weights that have a gradient.
        inputs: What all groups have in common.
    """
    _step(group, rows, inputs, group.get(STATE_DTYPE, torch.float32))


def _step(
    group: dict[str, Any], rows: Sequence[StepRow], inputs: StepInputs, dtype: torch.dtype
) -> None:
    beta1, beta2 = group["betas"]
    for columns in split_by_device(rows):
        keyed = list(zip(columns.states, columns.weights, strict=True))
        adam_step_(
            columns.gradients,
            columns.weights,
            columns.copies,
            [state_tensor(state, "exp_avg", weight, dtype) for state, weight in keyed],
            [state_tensor(state, "exp_avg_sq", weight, dtype) for state, weight in keyed],
            [_step_counter(state, columns.device) for state in columns.states],
            lr=columns.lr(group),
            betas=(float(beta1), float(beta2)),
            eps=float(group["eps"]),
            weight_decay=float(group["weight_decay"]),
            is_decoupled=group["decoupled_weight_decay"],
            maximize=group["maximize"],
            seed=group.get(ROUNDING_SEED, 0),
            **inputs.on(columns.device),
        )


def _step_counter(state: dict[str, Any], device: torch.device) -> Tensor:
    step = state.get("step")
    if isinstance(step, Tensor) and step.dtype == torch.float32 and step.device == device:
        return step
    # torch's optimizers keep it on the host unless they are fused or capturable.
    step = torch.as_tensor(0.0 if step is None else step, dtype=torch.float32, device=device)
    state["step"] = step
    return step

"""A step of one parameter group of Adam or AdamW."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_mp.kernels.adam import adam_step_
from lightning_mp.kernels.step_rows import StepInputs, StepRow, float32_state, split_by_device

__all__ = ["adam_group_step_"]


def adam_group_step_(group: dict[str, Any], rows: Sequence[StepRow], inputs: StepInputs) -> None:
    """Update the weights of a parameter group by Adam, or by AdamW as the group says.

    Nothing is read on the host. The state is that of ``torch.optim.Adam(fused=True)``.

    Args:
        group: Parameter group of ``torch.optim.Adam`` or ``AdamW``, without ``amsgrad``.
        rows: The weights that have a gradient.
        inputs: What all groups have in common.
    """
    beta1, beta2 = group["betas"]
    for columns in split_by_device(rows):
        keyed = list(zip(columns.states, columns.weights, strict=True))
        adam_step_(
            columns.gradients,
            columns.weights,
            columns.copies,
            [float32_state(state, "exp_avg", weight) for state, weight in keyed],
            [float32_state(state, "exp_avg_sq", weight) for state, weight in keyed],
            [_step_counter(state, columns.device) for state in columns.states],
            lr=columns.lr(group),
            betas=(float(beta1), float(beta2)),
            eps=float(group["eps"]),
            weight_decay=float(group["weight_decay"]),
            is_decoupled=group["decoupled_weight_decay"],
            maximize=group["maximize"],
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

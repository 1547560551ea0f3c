"""A step of one parameter group of SGD."""

from collections.abc import Sequence
from typing import Any

from lightning_mp.kernels.sgd import sgd_step_
from lightning_mp.kernels.step_rows import StepInputs, StepRow, split_by_device, state_tensor

__all__ = ["sgd_group_step_"]


def sgd_group_step_(group: dict[str, Any], rows: Sequence[StepRow], inputs: StepInputs) -> None:
    """Update the weights of a parameter group by SGD.

    The state is that of ``torch.optim.SGD``. With dampening the first step asks the device whether
    it is skipped, because the first gradient is not damped; otherwise nothing is read on the host.

    Args:
        group: Parameter group of ``torch.optim.SGD``.
        rows: The weights that have a gradient.
        inputs: What all groups have in common.
    """
    first: list[StepRow] = []
    if group["momentum"] and group["dampening"]:
        first = [row for row in rows if row.state.get("momentum_buffer") is None]
        rows = [row for row in rows if row.state.get("momentum_buffer") is not None]
    # The host has to know: torch does not damp where there is no buffer yet, and one that was made
    # for a skipped step could not be told, in a checkpoint either, from one that holds a gradient.
    if first and not (inputs.found_inf is not None and bool(inputs.found_inf)):
        _step(group, first, inputs, is_first=True)
    _step(group, rows, inputs, is_first=False)


def _step(
    group: dict[str, Any], rows: Sequence[StepRow], inputs: StepInputs, *, is_first: bool
) -> None:
    momentum = float(group["momentum"])
    for columns in split_by_device(rows):
        keyed = zip(columns.states, columns.weights, strict=True) if momentum else ()
        sgd_step_(
            columns.gradients,
            columns.weights,
            columns.copies,
            # Undamped, a buffer of zeros gives what the first step gives.
            [state_tensor(state, "momentum_buffer", weight) for state, weight in keyed],
            lr=columns.lr(group),
            momentum=momentum,
            dampening=float(group["dampening"]),
            weight_decay=float(group["weight_decay"]),
            nesterov=group["nesterov"],
            maximize=group["maximize"],
            is_first=is_first,
            **inputs.on(columns.device),
        )

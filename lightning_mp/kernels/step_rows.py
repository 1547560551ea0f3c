"""What the step of a parameter group works on, whatever the algorithm."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = [
    "StepColumns",
    "StepInputs",
    "StepRow",
    "split_by_device",
    "state_of",
    "state_tensor",
]


class StepRow(NamedTuple):
    """One weight of a step.

    Attributes:
        gradient: Dense gradient, float32, bfloat16 or float16.
        weight: float32 master or parameter, or the int16 remainder of a split master.
        copy: Half weight that follows, ``None`` where there is none.
        state: The optimizer's state of this weight, filled in as needed.
    """

    gradient: Tensor
    weight: Tensor
    copy: Tensor | None
    state: dict[str, Any]


@dataclass(frozen=True)
class StepInputs:
    """What all groups of a step have in common.

    Attributes:
        factor: What gradients are multiplied by first, one element; ``None`` for 1.
        found_inf: One element; unless it is 0, nothing changes. ``None`` for 0.
        clip_value: Largest absolute value of a gradient element; ``None`` for no limit.
        adopt: Whether half weights that are not the roundings of their masters replace them.
    """

    factor: Tensor | None = None
    found_inf: Tensor | None = None
    clip_value: float | None = None
    adopt: bool = False

    def on(self, device: torch.device) -> dict[str, Any]:
        """Return them as keyword arguments of an operation.

        Args:
            device: Device of the operation.
        """
        return {
            "factor": _scalar_on(self.factor, device),
            "found_inf": _scalar_on(self.found_inf, device),
            "clip_value": self.clip_value,
            "adopt": self.adopt,
        }


class StepColumns(NamedTuple):
    """The rows of one device, as an operation takes them.

    Attributes:
        device: The device.
        gradients: Gradients.
        weights: Weights.
        copies: Half weights, a tensor without elements where there is none.
        states: States.
    """

    device: torch.device
    gradients: list[Tensor]
    weights: list[Tensor]
    copies: list[Tensor]
    states: list[dict[str, Any]]

    def lr(self, group: dict[str, Any]) -> Any:
        """Return a group's learning rate: a number, or a tensor on this device.

        Args:
            group: The parameter group.
        """
        lr = group["lr"]
        return _scalar_on(lr, self.device) if isinstance(lr, Tensor) else float(lr)


def split_by_device(rows: Sequence[StepRow]) -> list[StepColumns]:
    """Sort rows by the device of their weights.

    Args:
        rows: Rows of one group.
    """
    if not rows:
        return []
    device = rows[0].weight.device
    if all(row.weight.device == device for row in rows):
        return [_columns(device, rows)]
    groups: dict[torch.device, list[StepRow]] = {}
    for row in rows:
        groups.setdefault(row.weight.device, []).append(row)
    return [_columns(device, members) for device, members in groups.items()]


def state_of(optimizer: Optimizer, group: dict[str, Any], parameter: Tensor) -> dict[str, Any]:
    """Return the state of a parameter, for the algorithm to fill in.

    Args:
        optimizer: The optimizer.
        group: The parameter's group.
        parameter: The parameter.
    """
    # SGD without momentum has none, and torch then makes no entry either.
    return optimizer.state[parameter] if group.get("momentum", 1.0) else {}


def state_tensor(
    state: dict[str, Any], key: str, like: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return a tensor of an optimizer's state in one dtype where its weight is; zeros at first.

    Args:
        state: State of one weight; takes the tensor.
        key: Its name.
        like: The weight.
        dtype: The dtype; what is not in it yet is rounded to nearest.
    """
    value = state.get(key)
    if value is None:
        value = torch.zeros_like(like, dtype=dtype, requires_grad=False)
    elif value.dtype == dtype and value.device == like.device:
        return value
    else:
        value = value.to(like.device, dtype)
    state[key] = value
    return value


def _columns(device: torch.device, rows: Sequence[StepRow]) -> StepColumns:
    nothing = torch.empty(0, device=device)
    return StepColumns(
        device,
        [row.gradient for row in rows],
        [row.weight for row in rows],
        [nothing if row.copy is None else row.copy for row in rows],
        [row.state for row in rows],
    )


def _scalar_on(scalar: Tensor | None, device: torch.device) -> Tensor | None:
    # From the host to a device, or between devices, without waiting.
    return None if scalar is None else scalar.to(device, torch.float32, non_blocking=True)

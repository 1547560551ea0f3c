"""``lightning_mp::scale_copy_`` and ``axpby_`` in plain torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_mp.kernels.reference.checks import FLOATING, check_lists, check_scalars
from lightning_mp.kernels.reference.passes import finite_flags

__all__ = ["axpby_", "scale_copy_"]


def scale_copy_(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], scale: Tensor, found_inf: Tensor
) -> None:
    """Write inputs times a scale to outputs.

    Args:
        inputs: As in :func:`lightning_mp.kernels.scale_copy.scale_copy_`.
        outputs: As there.
        scale: As there.
        found_inf: As there.
    """
    lists = {"inputs": (inputs, FLOATING), "outputs": (outputs, FLOATING)}
    check_lists("scale_copy_", lists, written={"outputs"})
    scalars = {"scale": (scale, torch.float32), "found_inf": (found_inf, torch.float32)}
    check_scalars("scale_copy_", inputs, scalars)
    # Before outputs are written: they may be the inputs.
    _note(inputs, found_inf)
    for tensor, output in zip(inputs, outputs, strict=True):
        output.copy_(tensor.float() * scale.reshape(()))


def axpby_(
    x: Sequence[Tensor],
    y: Sequence[Tensor],
    outputs: Sequence[Tensor],
    a: float,
    b: float,
    found_inf: Tensor,
) -> None:
    """Write ``a * x + b * y`` to outputs.

    Args:
        x: As in :func:`lightning_mp.kernels.scale_copy.axpby_`.
        y: As there.
        outputs: As there.
        a: As there.
        b: As there.
        found_inf: As there.
    """
    lists = {"x": (x, FLOATING), "y": (y, FLOATING), "outputs": (outputs, FLOATING)}
    check_lists("axpby_", lists, written={"outputs"})
    check_scalars("axpby_", x, {"found_inf": (found_inf, torch.float32)})
    _note([*x, *y], found_inf)
    for first, second, output in zip(x, y, outputs, strict=True):
        output.copy_(first.float() * a + second.float() * b)


def _note(tensors: Sequence[Tensor], found_inf: Tensor) -> None:
    if tensors:
        found_inf.masked_fill_(~finite_flags(tensors).all(), 1.0)

"""``lightning_mp::scale_copy_`` and ``axpby_`` in plain torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_mp.kernels.reference.checks import (
    FLOATING,
    check_found_inf,
    check_lists,
    check_scalars,
    set_found_inf,
)

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
    check_scalars("scale_copy_", inputs, {"scale": (scale, torch.float32)})
    check_found_inf("scale_copy_", inputs, found_inf)
    flags = []
    for tensor, output in zip(inputs, outputs, strict=True):
        result = tensor.float() * scale.reshape(())
        flags.append(result.isfinite().all())
        output.copy_(result)
    set_found_inf(found_inf, flags)


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
    check_found_inf("axpby_", x, found_inf)
    flags = []
    for first, second, output in zip(x, y, outputs, strict=True):
        result = first.float() * a + second.float() * b
        flags.append(result.isfinite().all())
        output.copy_(result)
    set_found_inf(found_inf, flags)

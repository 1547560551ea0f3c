"""Copies and sums of many tensors, with a check for what is not finite, in one pass over memory."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_mp.kernels.library import load_kernels
from lightning_mp.kernels.versions import bump_versions

__all__ = ["axpby_", "scale_copy_"]

load_kernels()


@torch.no_grad()
def scale_copy_(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], *, scale: Tensor, found_inf: Tensor
) -> None:
    """Write inputs times a scale to outputs, in the outputs' dtypes.

    Args:
        inputs: float32, bfloat16 or float16, of any shapes and layouts, on one device.
        outputs: Tensors of the same shapes, of any of these dtypes; they may be the inputs.
        scale: float32 with one element.
        found_inf: float32 with one element, or with one for each input; set to 1 if a product, in
            float32, is infinite or NaN, and otherwise left alone. What overflows only when it is
            rounded to half does not count.

    Raises:
        RuntimeError: If arguments do not fit together; nothing was written.

    Example:
        >>> outputs, found_inf = [torch.zeros(2)], torch.zeros(1)
        >>> scale = torch.tensor(0.5)
        >>> scale_copy_([torch.ones(2).half()], outputs, scale=scale, found_inf=found_inf)
        >>> outputs[0].tolist(), found_inf.item()
        ([0.5, 0.5], 0.0)
    """
    torch.ops.lightning_mp.scale_copy_(inputs, outputs, scale, found_inf)
    bump_versions(outputs)


@torch.no_grad()
def axpby_(
    x: Sequence[Tensor],
    y: Sequence[Tensor],
    outputs: Sequence[Tensor],
    *,
    a: float,
    b: float,
    found_inf: Tensor,
) -> None:
    """Write ``a * x + b * y`` to outputs, in the outputs' dtypes.

    Args:
        x: float32, bfloat16 or float16, of any shapes and layouts, on one device.
        y: Tensors of the same shapes, of any of these dtypes.
        outputs: Tensors of the same shapes, of any of these dtypes; they may be ``x`` or ``y``.
        a: Factor of ``x``.
        b: Factor of ``y``.
        found_inf: float32 with one element, or with one for each of ``x``; set to 1 if a sum, in
            float32, is infinite or NaN, and otherwise left alone.

    Raises:
        RuntimeError: If arguments do not fit together; nothing was written.

    Example:
        >>> x, y, found_inf = [torch.ones(2)], [torch.ones(2).half()], torch.zeros(1)
        >>> axpby_(x, y, x, a=2.0, b=3.0, found_inf=found_inf)
        >>> x[0].tolist()
        [5.0, 5.0]
    """
    torch.ops.lightning_mp.axpby_(x, y, outputs, a, b, found_inf)
    bump_versions(outputs)

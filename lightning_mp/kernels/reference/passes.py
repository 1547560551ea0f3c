"""What steps do to gradients of any dtype where no fused operation is called, in plain torch.

Nothing here copies a value from an accelerator to the host.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    "clip_coefficient",
    "copy_to_float32",
    "finite_flags",
    "total_norm",
]


def finite_flags(gradients: Sequence[Tensor]) -> Tensor:
    """Tell for each gradient whether all its elements are finite.

    Args:
        gradients: Dense floating or complex tensors of one device, of any shape and of mixed
            dtypes.

    Returns:
        A bool tensor of shape ``[len(gradients)]`` on the gradients' device. Empty gradients count
        as finite.
    """
    if not gradients:
        return torch.ones(0, dtype=torch.bool)
    device = gradients[0].device
    filled = [gradient for gradient in gradients if gradient.numel()]
    if len(filled) < len(gradients):
        flags = torch.ones(len(gradients), dtype=torch.bool, device=device)
        positions = [index for index, gradient in enumerate(gradients) if gradient.numel()]
        if positions:
            flags[positions] = finite_flags(filled)
        return flags
    filled = [_as_real(gradient) for gradient in filled]
    wide = _norm_dtype(filled)
    if device.type == "cpu":
        # aminmax is vectorised for half dtypes on CPUs, the infinity norm is not (20 times slower).
        extremes = [torch.stack(torch.aminmax(gradient)).to(wide) for gradient in filled]
        return torch.isfinite(torch.stack(extremes)).all(dim=1)
    norms = torch._foreach_norm(filled, float("inf"))
    return torch.isfinite(torch.stack([norm.to(wide) for norm in norms]))


def total_norm(gradients: Sequence[Tensor], norm_type: float = 2.0) -> Tensor:
    """Compute the norm of all gradients together, accumulated in FP32 (FP64 if one is FP64).

    Args:
        gradients: Dense floating or complex tensors of any shape, dtype and device.
        norm_type: Order of the norm, above 0; ``inf`` is allowed.

    Returns:
        A float32 scalar on the first gradient's device (on the CPU for an empty list).
    """
    filled = [gradient for gradient in gradients if gradient.numel()]
    if not filled:
        return torch.zeros(())
    norms: list[Tensor] = []
    wide = _norm_dtype(filled)
    # torch takes the norm of complex and of real tensors in different dtypes.
    filled = [item.abs() if item.is_complex() else item for item in filled]
    for members in _by_device(filled):
        norms += torch._foreach_norm(members, norm_type, dtype=wide)
    device = filled[0].device
    joined = torch.stack([norm.to(device) for norm in norms])
    return torch.linalg.vector_norm(joined, norm_type).float()


def clip_coefficient(norm: Tensor, max_norm: float) -> Tensor:
    """Return the factor that brings gradients of a given norm down to ``max_norm``.

    The formula is that of ``torch.nn.utils.clip_grad_norm_``.

    Args:
        norm: Float32 scalar.
        max_norm: Largest norm allowed, above 0.

    Returns:
        A float32 scalar of at most 1.
    """
    return (max_norm / (norm + 1e-6)).clamp(max=1.0)


def copy_to_float32(gradients: Sequence[Tensor], masters: Sequence[Tensor]) -> list[Tensor]:
    """Copy gradients to new FP32 tensors in the memory layout of their masters.

    torch's fused CPU optimizers read a gradient of another layout in storage order and so update
    the wrong elements; the copy takes the master's layout to rule that out.

    Args:
        gradients: Dense tensors of any floating dtype.
        masters: One tensor per gradient, of the same shape and any dtype.

    Returns:
        One new FP32 tensor per gradient.
    """
    copies = [
        torch.empty_like(master, dtype=torch.float32, requires_grad=False) for master in masters
    ]
    for copy, gradient in zip(copies, gradients, strict=True):
        copy.copy_(gradient)
    return copies


def _as_real(gradient: Tensor) -> Tensor:
    return torch.view_as_real(gradient) if gradient.is_complex() else gradient


def _norm_dtype(gradients: Sequence[Tensor]) -> torch.dtype:
    is_double = any(gradient.dtype in (torch.float64, torch.complex128) for gradient in gradients)
    return torch.float64 if is_double else torch.float32


def _by_device(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    groups: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.device, []).append(tensor)
    return list(groups.values())

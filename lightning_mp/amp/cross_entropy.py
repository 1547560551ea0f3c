"""Cross-entropy over half logits with an FP32 loss and no FP32 copy of the logits.

A language model's logits are often its largest tensor. Lifting them to FP32 costs more time and
memory than the rest of the loss; computing in half costs the loss its precision. Here logits are
lifted a few at a time, and the gradient is made in backward, so that the incoming factor (loss
scale, 1 / number of targets) is applied in FP32 before the gradient is rounded to half, once.
Where classes lie next to each other in memory, the kernels of
:mod:`lightning_mp.kernels.cross_entropy` do it.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_mp.kernels.cross_entropy import cross_entropy_backward, cross_entropy_forward
from lightning_mp.kernels.reference.cross_entropy import block_elements

__all__ = ["cross_entropy_reference", "half_cross_entropy"]

_HALF = (torch.float16, torch.bfloat16)
_PLAIN = (Tensor, nn.Parameter)

# Fewer logits are lifted as a whole: the calls of the other forms take longer (measured on a CPU).
_MIN_ELEMENTS = 2**17


def half_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute the cross-entropy of half logits in FP32.

    Half logits with class-index targets go to a kernel if classes are their innermost dimension in
    memory, or there is only one other, and are processed in blocks if not; every other form goes
    through :func:`cross_entropy_reference`. Under ``create_graph=True`` the gradient is made in
    FP32 at once, and can be differentiated.

    Args:
        input: Logits, ``(C,)``, ``(N, C)`` or ``(N, C, d1, ...)``, any floating dtype.
        target: Class indices (int64) of the input's shape without ``C``, or class probabilities.
        weight: Optional weight per class, shape ``(C,)``.
        size_average: Deprecated by torch, see ``reduction``.
        ignore_index: Target value that contributes neither loss nor gradient.
        reduce: Deprecated by torch, see ``reduction``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: Share of the uniform distribution in the targets, 0 to 1.

    Returns:
        The loss, float32 for half logits: a scalar, or of the target's shape for ``"none"``.

    Example:
        >>> logits = torch.zeros(3, 7, dtype=torch.bfloat16)
        >>> half_cross_entropy(logits, torch.tensor([0, 6, 2])).dtype
        torch.float32
    """
    is_deprecated = size_average is not None or reduce is not None
    is_known = not is_deprecated and reduction in ("mean", "sum", "none")
    if is_known and _fits_rows(input, target, weight, label_smoothing):
        weight = None if weight is None else weight.float()
        losses = _row_losses(input, target, weight, ignore_index, label_smoothing)
    elif is_known and weight is None and not label_smoothing and _fits_blocks(input, target):
        losses = _block_losses(input, target, ignore_index)
    else:
        return cross_entropy_reference(
            input,
            target,
            weight,
            size_average,
            ignore_index,
            reduce,
            reduction,
            label_smoothing,
        )
    if reduction == "none":
        return losses
    total = losses.sum()
    return total if reduction == "sum" else total / _total_weight(target, weight, ignore_index)


def cross_entropy_reference(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute the cross-entropy with every half tensor lifted to FP32.

    The readable counterpart of :func:`half_cross_entropy`, with the same arguments.

    Args:
        input: Logits, see :func:`half_cross_entropy`.
        target: Class indices or class probabilities.
        weight: Optional weight per class.
        size_average: Deprecated by torch.
        ignore_index: Target value that is left out.
        reduce: Deprecated by torch.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: Share of the uniform distribution in the targets.

    Returns:
        The loss, float32 for half logits.
    """
    return F.cross_entropy(
        _lift(input),
        _lift(target),
        None if weight is None else _lift(weight),
        size_average,
        ignore_index,
        reduce,
        reduction,
        label_smoothing,
    )


class _RowCrossEntropy(torch.autograd.Function):
    """Loss per row of logits ``(N, C)``, by the kernels."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        weight: Tensor | None,
        ignore_index: int,
        label_smoothing: float,
    ) -> Tensor:
        ctx.settings = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
        losses, statistics = cross_entropy_forward(logits, target, weight=weight, **ctx.settings)
        ctx.save_for_backward(logits, target, weight, statistics)
        return losses

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits, target, weight, statistics = ctx.saved_tensors
        (gradient,) = grad_outputs
        if torch.is_grad_enabled():  # create_graph=True: a gradient that can be differentiated
            losses = F.cross_entropy(
                logits.float(), target, weight, reduction="none", **ctx.settings
            )
            (result,) = torch.autograd.grad(losses, logits, gradient, create_graph=True)
        else:
            result = cross_entropy_backward(
                gradient, logits, target, statistics, weight=weight, **ctx.settings
            )
        return result, None, None, None, None


class _BlockedCrossEntropy(torch.autograd.Function):
    """Loss per target of logits ``(N, C, S)``, lifted to FP32 block by block."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, index: Tensor, is_counted: Tensor) -> Tensor:
        losses = torch.empty_like(index, dtype=torch.float32)
        for block, at, out in _blocks(logits, index, losses):
            out.copy_(F.log_softmax(block.float(), dim=1).gather(1, at).neg_())
        ctx.save_for_backward(logits, index, is_counted, losses)
        return torch.where(is_counted, losses, 0.0)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        logits, index, is_counted, losses = ctx.saved_tensors
        factor = torch.where(is_counted, grad_outputs[0], 0.0)
        if torch.is_grad_enabled():  # create_graph=True: a gradient that can be differentiated
            probabilities = F.softmax(logits.float(), dim=1)
            one_hot = torch.zeros_like(probabilities).scatter_(1, index, 1.0)
            return ((probabilities - one_hot) * factor).to(logits.dtype), None, None
        # p - 1 at the target, known from its loss: a plain scatter does, which is deterministic.
        target_grad = torch.expm1(-losses).mul_(factor)
        grad = torch.empty_like(logits)
        for block, at, scale, value, out in _blocks(logits, index, factor, target_grad, grad):
            probabilities = F.softmax(block.float(), dim=1)
            out.copy_(probabilities.mul_(scale).scatter_(1, at, value))
        return grad, None, None


def _row_losses(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
) -> Tensor:
    """Return the loss of each target; nothing is copied, except (in half) some slices."""
    class_dim = _class_dim(input)
    logits = input.movedim(class_dim, -1).reshape(-1, input.size(class_dim))
    losses = _RowCrossEntropy.apply(
        logits, target.reshape(-1), weight, ignore_index, label_smoothing
    )
    return losses.reshape(target.shape)


def _block_losses(input: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    is_counted = target != ignore_index
    index = torch.where(is_counted, target, 0)
    shape = (input.size(0), 1, -1)
    losses = _BlockedCrossEntropy.apply(
        input.flatten(2), index.reshape(shape), is_counted.reshape(shape)
    )
    return losses.reshape(target.shape)


def _total_weight(target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """Return what the sum of losses is divided by for their mean."""
    is_counted = target != ignore_index
    if weight is None:
        return is_counted.sum()
    return torch.where(is_counted, weight[torch.where(is_counted, target, 0)], 0.0).sum()


def _fits_rows(
    input: Tensor, target: Tensor, weight: Tensor | None, label_smoothing: float
) -> bool:
    """Whether the kernels take these tensors as they lie in memory."""
    return (
        _is_supported(input, target)
        and (input.dim() <= 2 or input.stride(1) == 1)
        and 0.0 <= label_smoothing <= 1.0
        and (
            weight is None
            or (
                type(weight) in _PLAIN
                and weight.dtype in (*_HALF, torch.float32)
                and weight.shape == (input.size(_class_dim(input)),)
                and weight.device == input.device
                and not weight.requires_grad
            )
        )
    )


def _fits_blocks(input: Tensor, target: Tensor) -> bool:
    """Whether the block form takes these tensors and they fill more than one block."""
    return (
        _is_supported(input, target) and input.dim() > 2 and input.numel() > block_elements(input)
    )


def _is_supported(input: Tensor, target: Tensor) -> bool:
    """Whether these are half logits and a class of each.

    Tensor subclasses bring their own cross-entropy, and a compiler fuses the lift into the softmax.
    """
    return (
        type(input) in _PLAIN
        and type(target) in _PLAIN
        and input.dtype in _HALF
        and target.dtype == torch.int64
        and input.dim() > 0
        and input.numel() > _MIN_ELEMENTS
        and target.device == input.device
        and target.shape == input.movedim(_class_dim(input), -1).shape[:-1]
        and not torch.compiler.is_compiling()
    )


def _blocks(logits: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield matching views of all tensors, small enough in the logits to be lifted at once."""
    max_columns = max(1, block_elements(logits) // logits.size(1))
    num_rows = max(1, max_columns // logits.size(2))
    for parts in zip(*(tensor.split(num_rows) for tensor in (logits, *others)), strict=True):
        yield from zip(*(part.split(max_columns, dim=2) for part in parts), strict=True)


def _class_dim(input: Tensor) -> int:
    return 0 if input.dim() == 1 else 1


def _lift(tensor: Tensor) -> Tensor:
    return tensor.float() if isinstance(tensor, Tensor) and tensor.dtype in _HALF else tensor

"""Cross-entropy over half logits with an FP32 loss and no FP32 copy of the logits.

A language model's logits are often its largest tensor. Lifting them to FP32 costs more time and
memory than the rest of the loss; computing in half costs the loss its precision. Here blocks of the
logits are lifted one at a time, and the gradient is made in backward, so that the incoming factor
(loss scale, 1 / number of targets) is applied in FP32 before the gradient is rounded to half, once.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["cross_entropy_reference", "half_cross_entropy"]

_HALF = (torch.float16, torch.bfloat16)
_PLAIN = (Tensor, nn.Parameter)

# Elements lifted at once. On a CPU a block stays in the cache (measured: 2**17 .. 2**20 are equal,
# 2**22 is 6x slower); elsewhere kernel launches are what a larger block saves.
_CPU_BLOCK_ELEMENTS = 2**19
_DEVICE_BLOCK_ELEMENTS = 2**22


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

    Large half logits with class-index targets are processed in blocks; every other form goes
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
    has_options = weight is not None or size_average is not None or reduce is not None
    if (
        has_options
        or label_smoothing != 0.0
        or reduction not in ("mean", "sum", "none")
        or not _fits_blocks(input, target)
    ):
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
    logits, shape = _block_layout(input)
    is_counted = target != ignore_index
    index = torch.where(is_counted, target, 0)
    losses = _BlockedCrossEntropy.apply(logits, index.reshape(shape), is_counted.reshape(shape))
    if reduction == "none":
        return losses.reshape(target.shape)
    total = losses.sum()
    return total / is_counted.sum() if reduction == "mean" else total


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


class _BlockedCrossEntropy(torch.autograd.Function):
    """Loss per target of logits ``(N, C)`` or ``(N, C, S)``, lifted to FP32 block by block."""

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


def _fits_blocks(input: Tensor, target: Tensor) -> bool:
    """Whether the block form takes these tensors and they fill more than one block.

    Tensor subclasses bring their own cross-entropy, and a compiler fuses the lift into the softmax.
    """
    return (
        type(input) in _PLAIN
        and type(target) in _PLAIN
        and input.dtype in _HALF
        and target.dtype == torch.int64
        and input.dim() > 0
        and input.numel() > _block_elements(input)
        and target.shape == input.movedim(_class_dim(input), -1).shape[:-1]
        and not torch.compiler.is_compiling()
    )


def _block_layout(input: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Return the logits as ``(N, C)`` where classes lie innermost, else as ``(N, C, S)``.

    With them comes the shape of the targets in that layout. Nothing is copied, except (in half)
    logits that are a slice of a larger tensor.
    """
    if input.dim() <= 2 or input.stride(1) == 1:
        class_dim = _class_dim(input)
        return input.movedim(class_dim, -1).reshape(-1, input.size(class_dim)), (-1, 1)
    return input.flatten(2), (input.size(0), 1, -1)


def _blocks(logits: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield matching views of all tensors, small enough in the logits to be lifted at once."""
    max_columns = max(1, _block_elements(logits) // logits.size(1))
    num_columns = logits.size(2) if logits.dim() == 3 else 1
    num_rows = max(1, max_columns // num_columns)
    for parts in zip(*(tensor.split(num_rows) for tensor in (logits, *others)), strict=True):
        if logits.dim() == 2:
            yield parts
        else:
            yield from zip(*(part.split(max_columns, dim=2) for part in parts), strict=True)


def _class_dim(input: Tensor) -> int:
    return 0 if input.dim() == 1 else 1


def _block_elements(tensor: Tensor) -> int:
    return _CPU_BLOCK_ELEMENTS if tensor.device.type == "cpu" else _DEVICE_BLOCK_ELEMENTS


def _lift(tensor: Tensor) -> Tensor:
    return tensor.float() if isinstance(tensor, Tensor) and tensor.dtype in _HALF else tensor

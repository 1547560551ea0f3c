"""``lightning_mp::cross_entropy_forward`` and ``cross_entropy_backward`` in plain torch."""

import torch
from torch import Tensor

from lightning_mp.kernels.reference.checks import check_share, check_tensor

__all__ = ["block_elements", "cross_entropy_backward", "cross_entropy_forward"]

_HALF = (torch.bfloat16, torch.float16)

# Elements lifted at once. On a CPU a block stays in the cache (measured: 2**17 .. 2**20 are equal,
# 2**22 is 6x slower); elsewhere kernel launches are what a larger block saves.
_CPU_BLOCK_ELEMENTS = 2**19
_DEVICE_BLOCK_ELEMENTS = 2**22


def block_elements(tensor: Tensor) -> int:
    """Say how many half elements should be lifted to FP32 at once.

    Args:
        tensor: Tensor of the device in question.

    Returns:
        The number of elements.
    """
    return _CPU_BLOCK_ELEMENTS if tensor.device.type == "cpu" else _DEVICE_BLOCK_ELEMENTS


def cross_entropy_forward(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
) -> tuple[Tensor, Tensor]:
    """Compute the loss of each row, block by block.

    Args:
        logits: As in :func:`lightning_mp.kernels.cross_entropy.cross_entropy_forward`.
        target: As there.
        weight: As there.
        ignore_index: As there.
        label_smoothing: As there.

    Returns:
        Losses and statistics, as there.
    """
    _check("cross_entropy_forward", logits, target, weight, label_smoothing)
    is_counted = (target != ignore_index).unsqueeze(1)
    index = torch.where(is_counted, target.unsqueeze(1), 0)
    at_target, uniform = _shares(logits, index, weight, label_smoothing)
    losses = torch.zeros(index.shape, dtype=torch.float32, device=logits.device)
    statistics = torch.zeros((len(index), 3), dtype=torch.float32, device=logits.device)
    for rows in _blocks(logits):
        block = logits[rows].float()
        maximum = block.amax(dim=1, keepdim=True)
        sums = (block - maximum).exp_().sum(dim=1, keepdim=True)
        log_sum = sums.log()
        share = at_target[rows]
        loss = share * ((maximum - block.gather(1, index[rows])) + log_sum)
        if uniform is not None:
            distances = (uniform * (maximum - block)).sum(dim=1, keepdim=True)
            loss += distances + uniform.sum() * log_sum
            share = share + uniform.sum()
        losses[rows] = loss
        statistics[rows] = torch.cat([maximum, sums, share], dim=1)
    zero = torch.zeros((), dtype=torch.float32, device=logits.device)
    losses = torch.where(is_counted, losses, zero).squeeze(1)
    return losses, torch.where(is_counted, statistics, zero)


def cross_entropy_backward(
    gradient: Tensor,
    logits: Tensor,
    target: Tensor,
    statistics: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
) -> Tensor:
    """Compute the gradient of the logits, block by block.

    Args:
        gradient: As in :func:`lightning_mp.kernels.cross_entropy.cross_entropy_backward`.
        logits: As there.
        target: As there.
        statistics: As there.
        weight: As there.
        ignore_index: As there.
        label_smoothing: As there.

    Returns:
        The gradient, of the dtype of the logits.
    """
    name = "cross_entropy_backward"
    _check(name, logits, target, weight, label_smoothing)
    num_rows, device = len(logits), logits.device
    check_tensor(name, {"gradient": gradient}, (torch.float32,), (num_rows,), device)
    check_tensor(name, {"statistics": statistics}, (torch.float32,), (num_rows, 3), device)
    is_counted = (target != ignore_index).unsqueeze(1)
    index = torch.where(is_counted, target.unsqueeze(1), 0)
    at_target, uniform = _shares(logits, index, weight, label_smoothing)
    result = torch.empty_like(logits, memory_format=torch.contiguous_format)
    for rows in _blocks(logits):
        maximum, sums, share = statistics[rows].unsqueeze(2).unbind(1)
        incoming = gradient[rows].unsqueeze(1)
        values = (logits[rows].float() - maximum).exp_()
        # probability - 1: the difference is exact where it is small.
        value = share * ((values.gather(1, index[rows]) - sums) / sums)
        value += share - at_target[rows]
        values.mul_(incoming * share / sums)
        if uniform is not None:
            values -= incoming * uniform
            value -= uniform[0][index[rows]]
        values.scatter_(1, index[rows], value.mul_(incoming))
        result[rows] = values.masked_fill_(~is_counted[rows], 0.0)
    return result


def _check(
    name: str, logits: Tensor, target: Tensor, weight: Tensor | None, label_smoothing: float
) -> None:
    if logits.dim() != 2:
        raise RuntimeError(
            f"lightning_mp::{name}: logits has shape {list(logits.shape)}; [rows, classes] "
            "is needed"
        )
    num_rows, num_classes = logits.shape
    check_tensor(name, {"logits": logits}, _HALF, logits.shape, logits.device)
    check_tensor(name, {"target": target}, (torch.int64,), (num_rows,), logits.device)
    check_tensor(name, {"weight": weight}, (torch.float32,), (num_classes,), logits.device)
    check_share(name, "label_smoothing", label_smoothing)


def _shares(
    logits: Tensor, index: Tensor, weight: Tensor | None, label_smoothing: float
) -> tuple[Tensor, Tensor | None]:
    """Return what the target of each row weighs, ``[N, 1]``, and what each class does, ``[1, C]``.

    The latter is ``None`` without smoothing.
    """
    num_classes = logits.size(1)
    ones = torch.ones((1, 1), dtype=torch.float32, device=logits.device)
    classes = (ones if weight is None else weight.unsqueeze(0)).expand(1, num_classes)
    at_target = classes.expand(len(index), -1).gather(1, index) * (1.0 - label_smoothing)
    return at_target, classes * (label_smoothing / num_classes) if label_smoothing else None


def _blocks(logits: Tensor) -> list[slice]:
    """Return slices of rows that are small enough to be lifted at once."""
    num_rows = max(1, block_elements(logits) // max(1, logits.size(1)))
    return [slice(begin, begin + num_rows) for begin in range(0, len(logits), num_rows)]

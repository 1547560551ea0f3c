"""FP32 to bfloat16, up or down by chance, in plain torch: bit for bit what the kernels do.

A number between two bfloat16 values becomes the upper one with a probability of its distance from
the lower one, so that the mean of many roundings is the number. The chance is a hash of a seed, the
step, the place of the element in memory and which state it is: SplitMix64 (Steele, Lea and Flood,
2014) of seed and step, then lowbias32 (Wellons, 2018) of the place.
"""

import torch
from torch import Tensor

__all__ = ["places_of", "random_words", "stochastic_bfloat16"]

_LARGEST = 0x7F7F0000
_INFINITY = 0x7F800000
_CANONICAL_NAN = 0x7FC0
_WORD = 0xFFFFFFFF


def places_of(weight: Tensor) -> Tensor:
    """Number the elements of a weight in the order in which kernels walk them.

    Args:
        weight: Tensor of any shape.

    Returns:
        int64 tensor of its shape: the order of memory if that has neither gaps nor overlaps, else
        the order of indices.
    """
    order = torch.arange(weight.numel(), device=weight.device)
    places = torch.empty_like(weight, dtype=torch.int64, requires_grad=False)
    if places.stride() != weight.stride():
        return order.view(weight.shape)
    places.as_strided((weight.numel(),), (1,)).copy_(order)
    return places


def random_words(places: Tensor, seed: int, step: Tensor) -> Tensor:
    """Make 32 random bits for each place.

    Args:
        places: int64 numbers of elements.
        seed: Any 64-bit integer.
        step: float32 tensor of one element on their device; its bits count.

    Returns:
        int64 tensor of numbers below 2**32.
    """
    z = (step.reshape(()).view(torch.int32).to(torch.int64) & _WORD) + 1
    z = z * _signed(0x9E3779B97F4A7C15) + _signed(seed)
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    z = z ^ _shifted(z, 31)
    x = (places + z) & _WORD
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _WORD
    x = (((x ^ (x >> 15)) + _shifted(z, 32)) * 0x846CA68B) & _WORD
    return x ^ (x >> 16)


def stochastic_bfloat16(value: Tensor, random: Tensor) -> Tensor:
    """Round to one of the two nearest bfloat16 values.

    Args:
        value: float32 tensor.
        random: int64 tensor of its shape; the lower 16 bits count.

    Returns:
        bfloat16 tensor. Bfloat16 values, infinity among them, stay what they are, no finite number
        becomes infinite, no sign changes, and every NaN becomes the canonical one.
    """
    bits = value.contiguous().view(torch.int32).to(torch.int64) & _WORD
    magnitude = bits & 0x7FFFFFFF
    chance = torch.where(magnitude < _LARGEST, random & 0xFFFF, 0)
    rounded = torch.where(magnitude > _INFINITY, _CANONICAL_NAN, (bits + chance) >> 16)
    # Narrowing keeps the lower 16 bits.
    return rounded.to(torch.int16).view(torch.bfloat16)


def _signed(number: int) -> int:
    """Bring 64 bits into the range of int64."""
    return (number + 2**63) % 2**64 - 2**63


def _shifted(number: Tensor, count: int) -> Tensor:
    """Shift to the right, with zeros from the left."""
    return (number >> count) & (2 ** (64 - count) - 1)

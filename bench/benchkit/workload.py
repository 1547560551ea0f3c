"""Workloads: a model and an endless supply of batches that it can learn from.

The data is synthetic but not noise, so that a loss after some steps says how well a precision
trains. No batch comes twice: what is measured on a batch before its step is held-out accuracy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from benchkit.models import LanguageLSTM, Transformer, make_mlp
from lightning_mp.recipes.vision.resnet import ResNet18

__all__ = ["WORKLOADS", "Workload", "make_workload"]

WORKLOADS = ("resnet18", "transformer", "mlp", "small_transformer", "lstm", "gpt2")

_NUM_CLASSES = 10
# Distance of a class from the origin, against noise of standard deviation 1 per feature: such that
# 60 steps get far from chance and far from perfect.
_IMAGE_STRENGTH = 12.0
_VECTOR_STRENGTH = 6.0
_SUCCESSOR_PROBABILITY = 0.5
_ZIPF_EXPONENT = 1.0


@dataclass(frozen=True)
class Workload:
    """Hold what is trained, on what.

    Attributes:
        title: What it is, for the table.
        make_model: Builds the model; weights come from torch's global generator.
        make_batch: Builds the batch of an index: inputs and integer targets, always the same ones.
    """

    title: str
    make_model: Callable[[], nn.Module]
    make_batch: Callable[[int], tuple[Tensor, Tensor]]

    def make_batches(self, num_batches: int) -> list[tuple[Tensor, Tensor]]:
        """Build the first batches.

        Args:
            num_batches: Number of batches.
        """
        return [self.make_batch(index) for index in range(num_batches)]


def make_workload(name: str, *, is_smoke: bool = False) -> Workload:
    """Build a workload.

    Args:
        name: One of ``WORKLOADS``.
        is_smoke: Whether everything is tiny, to try the benchmark itself.

    Returns:
        The workload.

    Raises:
        ValueError: If the name is unknown.
    """
    makers = {
        "resnet18": _resnet18,
        "transformer": _transformer,
        "mlp": _mlp,
        "small_transformer": _small_transformer,
        "lstm": _lstm,
        "gpt2": _gpt2,
    }
    if name not in makers:
        raise ValueError(
            f"workload = {name!r}; allowed are {', '.join(makers)}; choose among these"
        )
    return makers[name](is_smoke)


def _resnet18(is_smoke: bool) -> Workload:
    width, batch_size, side = (8, 4, 8) if is_smoke else (64, 32, 32)
    return Workload(
        f"ResNet-18 (3x3 stem, width {width}), {side}x{side} images, batch {batch_size}",
        partial(ResNet18, num_classes=_NUM_CLASSES, width=width),
        partial(
            _class_batch, batch_size=batch_size, shape=(3, side, side), strength=_IMAGE_STRENGTH
        ),
    )


def _transformer(is_smoke: bool) -> Workload:
    vocabulary_size, width, batch_size, time = (
        (103, 32, 3, 13) if is_smoke else (8192, 256, 16, 128)
    )
    return Workload(
        f"4-layer GPT-like transformer, width {width}, 4 heads, vocabulary {vocabulary_size}, "
        f"tied head, {time} tokens, batch {batch_size}",
        partial(Transformer, vocabulary_size, width, num_positions=time),
        partial(_token_batch, batch_size=batch_size, time=time, vocabulary_size=vocabulary_size),
    )


def _small_transformer(is_smoke: bool) -> Workload:
    """Build a model so small that its steps are all overhead."""
    vocabulary_size, width, batch_size, time = (53, 16, 2, 7) if is_smoke else (64, 32, 2, 8)
    return Workload(
        f"4-layer transformer, width {width}, {time} tokens, batch {batch_size} (overhead-bound)",
        partial(Transformer, vocabulary_size, width, num_positions=time),
        partial(_token_batch, batch_size=batch_size, time=time, vocabulary_size=vocabulary_size),
    )


def _lstm(is_smoke: bool) -> Workload:
    vocabulary_size, width, batch_size, time = (53, 17, 3, 7) if is_smoke else (256, 256, 16, 64)
    return Workload(
        f"2-layer LSTM language model, width {width}, {time} tokens, batch {batch_size}",
        partial(LanguageLSTM, vocabulary_size, width),
        partial(_token_batch, batch_size=batch_size, time=time, vocabulary_size=vocabulary_size),
    )


def _gpt2(is_smoke: bool) -> Workload:
    """Build a model of the size of GPT-2, for GPUs."""
    vocabulary_size, width, batch_size, time = (53, 24, 2, 7) if is_smoke else (50257, 768, 8, 1024)
    return Workload(
        f"12-layer GPT-2, width {width}, 12 heads, vocabulary {vocabulary_size}, tied head, "
        f"{time} tokens, batch {batch_size}",
        partial(
            Transformer,
            vocabulary_size,
            width,
            num_blocks=12,
            num_heads=12,
            num_positions=time,
        ),
        partial(_token_batch, batch_size=batch_size, time=time, vocabulary_size=vocabulary_size),
    )


def _mlp(is_smoke: bool) -> Workload:
    widths = (33, 17, _NUM_CLASSES) if is_smoke else (1024, 4096, 4096, 2048, _NUM_CLASSES)
    return Workload(
        f"MLP {'-'.join(map(str, widths))}, batch 8",
        partial(make_mlp, widths),
        partial(_class_batch, batch_size=8, shape=widths[:1], strength=_VECTOR_STRENGTH),
    )


def _class_batch(
    index: int, *, batch_size: int, shape: tuple[int, ...], strength: float
) -> tuple[Tensor, Tensor]:
    """Draw noise around one centre per class."""
    centres = torch.randn(_NUM_CLASSES, *shape, generator=torch.Generator().manual_seed(0))
    centres *= strength / centres[0].numel() ** 0.5
    generator = torch.Generator().manual_seed(index + 1)
    labels = torch.randint(0, _NUM_CLASSES, (batch_size,), generator=generator)
    return centres[labels] + torch.randn(batch_size, *shape, generator=generator), labels


def _token_batch(
    index: int, *, batch_size: int, time: int, vocabulary_size: int
) -> tuple[Tensor, Tensor]:
    """Draw tokens by Zipf's law; half of them are the one successor of the token before."""
    weights = torch.arange(1, vocabulary_size + 1).double().pow(-_ZIPF_EXPONENT)
    fixed = torch.Generator().manual_seed(0)
    successors = weights.multinomial(vocabulary_size, replacement=True, generator=fixed)
    generator = torch.Generator().manual_seed(index + 1)
    shape = (batch_size, time + 1)
    drawn = weights.multinomial(shape[0] * shape[1], replacement=True, generator=generator)
    tokens = drawn.view(shape)
    follows = torch.rand(shape, generator=generator) < _SUCCESSOR_PROBABILITY
    for place in range(1, time + 1):
        succeeded = successors[tokens[:, place - 1]]
        tokens[:, place] = torch.where(follows[:, place], succeeded, tokens[:, place])
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

"""What the accuracy of an optimizer's states is measured on: real data, small models."""

from collections.abc import Callable, Mapping
from pydoc_data.topics import topics
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Generator, Tensor, nn

from benchkit.models import Transformer, make_mlp

__all__ = ["STATE_TASKS", "StateTask"]

_NUM_HELD_OUT_DIGITS = 450
_DIGITS_BATCH = 64
_CONTEXT = 32
_TEXT_BATCH = 16
_NUM_HELD_OUT_SEQUENCES = 256
# Of the text, at its end.
_HELD_OUT_SHARE = 0.1
_WIDTH, _NUM_BLOCKS = 64, 2


class StateTask(NamedTuple):
    """Hold a task: a model, batches to train on and examples that it never sees.

    Attributes:
        title: What it is, for the report.
        make_model: Makes the model; the last dimension of what it returns are classes.
        draw: Draws a batch of inputs and classes.
        held_out: Inputs and classes that are not trained on.
        num_steps: Number of steps.
        lr: Learning rate of AdamW at first; it falls to 0 along half a cosine.
    """

    title: str
    make_model: Callable[[], nn.Module]
    draw: Callable[[Generator], tuple[Tensor, Tensor]]
    held_out: tuple[Tensor, Tensor]
    num_steps: int
    lr: float


def _digits() -> StateTask:
    pixels, classes = load_digits(return_X_y=True)
    inputs = torch.from_numpy(pixels).float() / 16.0
    targets = torch.from_numpy(classes).long()
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    held_out, trained = order[:_NUM_HELD_OUT_DIGITS], order[_NUM_HELD_OUT_DIGITS:]

    def draw(generator: Generator) -> tuple[Tensor, Tensor]:
        rows = trained[torch.randint(len(trained), (_DIGITS_BATCH,), generator=generator)]
        return inputs[rows], targets[rows]

    return StateTask(
        title=f"{len(inputs)} images of digits (scikit-learn), an MLP of two hidden layers",
        make_model=lambda: make_mlp((64, 128, 64, 10)),
        draw=draw,
        held_out=(inputs[held_out], targets[held_out]),
        num_steps=2000,
        lr=1e-3,
    )


def _text() -> StateTask:
    text = "".join(topics[name] for name in sorted(topics))
    characters = sorted(set(text))
    numbers = {character: number for number, character in enumerate(characters)}
    tokens = torch.tensor([numbers[character] for character in text])
    num_trained = int(len(tokens) * (1 - _HELD_OUT_SHARE))

    def sequences(starts: Tensor) -> tuple[Tensor, Tensor]:
        windows = tokens[starts[:, None] + torch.arange(_CONTEXT + 1)]
        return windows[:, :-1], windows[:, 1:]

    def draw(generator: Generator) -> tuple[Tensor, Tensor]:
        last = num_trained - _CONTEXT - 1
        return sequences(torch.randint(last, (_TEXT_BATCH,), generator=generator))

    places = torch.linspace(num_trained, len(tokens) - _CONTEXT - 1, _NUM_HELD_OUT_SEQUENCES)
    return StateTask(
        title=(
            f"{len(tokens)} characters of Python's own documentation (pydoc_data), the next one, "
            f"by a transformer of {_NUM_BLOCKS} blocks of width {_WIDTH}"
        ),
        make_model=lambda: Transformer(
            len(characters), _WIDTH, num_blocks=_NUM_BLOCKS, num_positions=_CONTEXT
        ),
        draw=draw,
        held_out=sequences(places.long()),
        num_steps=1500,
        lr=3e-3,
    )


STATE_TASKS: Mapping[str, Callable[[], StateTask]] = {"digits": _digits, "text": _text}
"""Makers of the tasks by name."""

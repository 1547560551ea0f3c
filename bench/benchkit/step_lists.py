"""Lists of parameters whose step is measured: only their shapes, no model behind them."""

import random
from collections.abc import Callable, Mapping

__all__ = ["STEP_LISTS", "list_title", "make_shapes"]

Shape = tuple[int, ...]

_NUM_SMALL_TENSORS = 2000
_SMOKE_NUM_TENSORS = 40
# Dimensions of a smoke run are divided by this.
_SMOKE_DIVISOR = 24

_TITLES = {
    "gpt2": "GPT-2, 124 M parameters",
    "small": "2,000 tensors of 1 k to 64 k elements, sizes log-uniform",
    "resnet50": "ResNet-50",
}
STEP_LISTS = tuple(_TITLES)


def list_title(name: str) -> str:
    """Return what a list is, for the report.

    Args:
        name: One of ``STEP_LISTS``.
    """
    return _TITLES[name]


def make_shapes(name: str, *, is_smoke: bool = False) -> list[Shape]:
    """Return the shapes of a list of parameters.

    Args:
        name: One of ``STEP_LISTS``.
        is_smoke: Whether the list is short and its tensors are small, to try the benchmark.

    Raises:
        ValueError: If the name is unknown.

    Example:
        >>> make_shapes("gpt2")[:2]
        [(50257, 768), (1024, 768)]
    """
    makers: Mapping[str, Callable[[], list[Shape]]] = {
        "gpt2": _gpt2,
        "small": _small,
        "resnet50": _resnet50,
    }
    if name not in makers:
        raise ValueError(f"list = {name!r}; allowed are {', '.join(makers)}; choose among these")
    shapes = makers[name]()
    if not is_smoke:
        return shapes
    few = shapes[:_SMOKE_NUM_TENSORS]
    return [tuple(-(-size // _SMOKE_DIVISOR) for size in shape) for shape in few]


def _gpt2() -> list[Shape]:
    width, num_blocks = 768, 12
    norm = [(width,), (width,)]
    attention = [(width, 3 * width), (3 * width,), (width, width), (width,)]
    mlp = [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    blocks = [*norm, *attention, *norm, *mlp] * num_blocks
    return [(50257, width), (1024, width), *blocks, *norm]


def _small() -> list[Shape]:
    generator = random.Random(1)
    return [(int(2 ** generator.uniform(10, 16)),) for _ in range(_NUM_SMALL_TENSORS)]


def _resnet50() -> list[Shape]:
    shapes: list[Shape] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for width, num_blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(num_blocks):
            outputs = 4 * width
            convolutions = [
                (width, channels, 1, 1),
                (width, width, 3, 3),
                (outputs, width, 1, 1),
                *([(outputs, channels, 1, 1)] if block == 0 else []),
            ]
            for shape in convolutions:
                # A convolution without bias, then weight and bias of its batch norm.
                shapes += [shape, (shape[0],), (shape[0],)]
            channels = outputs
    return [*shapes, (1000, channels), (1000,)]

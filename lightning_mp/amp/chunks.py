"""Lists of parameters cut into pieces, so that FP32 copies of few gradients are alive at a time."""

from collections.abc import Iterator, Sequence

from torch import Tensor

__all__ = ["in_chunks"]

# Large enough to hide the cost of a call, small beside a model.
_CHUNK_ELEMENTS = 1 << 22


def in_chunks(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Cut a list of parameters into pieces of some million elements.

    Args:
        parameters: Tensors of any size; one that is larger than a piece is a piece of its own.

    Yields:
        The pieces, in order; none is empty.
    """
    chunk: list[Tensor] = []
    num_elements = 0
    for parameter in parameters:
        if chunk and num_elements + parameter.numel() > _CHUNK_ELEMENTS:
            yield chunk
            chunk, num_elements = [], 0
        chunk.append(parameter)
        num_elements += parameter.numel()
    if chunk:
        yield chunk

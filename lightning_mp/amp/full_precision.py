"""Show a converted model with its FP32 values for a while, to read them or to write them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from lightning_mp.amp.master_weights import MasterWeights

__all__ = ["full_precision"]


@contextmanager
def full_precision(masters: MasterWeights) -> Iterator[None]:
    """Put FP32 tensors in place of a model's half parameters and buffers.

    ``model.parameters()`` and ``model.buffers()`` give FP32 tensors meanwhile, in the same order
    and tied as before. What is written stays in full where there is a master, and the half weight
    follows on exit. Without masters (O3) writes are rounded on exit. The model
    must not run meanwhile. The model's own tensors come back also after an exception; whoever else
    holds them (an optimizer, a DDP wrapper) never sees the others.

    Args:
        masters: Masters of the converted model.

    Example:
        >>> import torch
        >>> from lightning_mp.amp import AmpEngine, LossScaler, resolve_opt_level
        >>> engine = AmpEngine(resolve_opt_level("O2"), LossScaler(1.0))
        >>> model = nn.Linear(7, 3)
        >>> engine.convert(model)
        >>> with full_precision(engine.masters):
        ...     _ = torch.nn.init.constant_(model.bias, 0.1)
        >>> model.bias.dtype, engine.masters.of(model.bias)[0].item() == torch.tensor(0.1).item()
        (torch.float16, True)
    """
    places: list[tuple[dict[str, Any], str, Tensor]] = []
    stand_ins: dict[Tensor, Tensor] = {}
    values: list[tuple[nn.Module, str, Tensor]] = []
    try:
        for owner in masters.owners:
            for name, value in list(masters.values_of(owner)):
                is_parameter = owner._parameters.get(name) is not None
                registry: dict[str, Any] = owner._parameters if is_parameter else owner._buffers
                half = registry[name]
                if half not in stand_ins:
                    stand_ins[half] = _stand_in(value, half)
                values.append((owner, name, half))
                places.append((registry, name, half))
                registry[name] = stand_ins[half]
        yield
    finally:
        for registry, name, half in places:
            registry[name] = half
        for owner, name, half in values:
            masters.write(owner, name, stand_ins[half])


def _stand_in(value: Tensor, half: Tensor) -> Tensor:
    if isinstance(half, nn.Parameter):
        return nn.Parameter(value, requires_grad=half.requires_grad)
    return value

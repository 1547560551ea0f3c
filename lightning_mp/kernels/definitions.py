"""Schemas and fake kernels of all operations: ``torch.ops.lightning_mp.*`` exists from here on.

What an operation does is written in the module of its Python face, such as
:mod:`lightning_mp.kernels.adam`. Common to all: the tensors of a call live on one device, dtypes
may be mixed, tensors without elements are allowed, and scalars that live on the device are float32
tensors of one element. An operation that is refused has written nothing.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.library import Library, register_fake

from lightning_mp.kernels.reference.checks import check_one_device

__all__ = ["LIBRARY", "NAMESPACE", "SCHEMAS"]

NAMESPACE = "lightning_mp"

SCHEMAS: Mapping[str, str] = {
    "gradient_stats_": (
        "(Tensor[] gradients, Tensor? inv_scale, float? max_norm, Tensor(a!) norm, "
        "Tensor(b!) factor, Tensor(c!) found_inf) -> ()"
    ),
    "adam_step_": (
        "(Tensor(a!)[] gradients, Tensor(b!)[] weights, Tensor(c!)[] copies, "
        "Tensor(d!)[] exp_avgs, Tensor(e!)[] exp_avg_sqs, Tensor(f!)[] steps, *, Tensor? factor, "
        "Tensor? found_inf, Tensor? lr_tensor, float lr, float beta1, float beta2, float eps, "
        "float weight_decay, bool decoupled, bool maximize, float? clip_value, "
        "bool zero_gradients, bool adopt, int seed) -> ()"
    ),
    "sgd_step_": (
        "(Tensor(a!)[] gradients, Tensor(b!)[] weights, Tensor(c!)[] copies, "
        "Tensor(d!)[] momentum_buffers, *, Tensor? factor, Tensor? found_inf, Tensor? lr_tensor, "
        "float lr, float momentum, float dampening, float weight_decay, bool nesterov, "
        "bool maximize, bool is_first, float? clip_value, bool zero_gradients, bool adopt) -> ()"
    ),
    "scale_copy_": (
        "(Tensor[] inputs, Tensor(a!)[] outputs, Tensor scale, Tensor(b!) found_inf) -> ()"
    ),
    "axpby_": (
        "(Tensor[] x, Tensor[] y, Tensor(a!)[] outputs, float a, float b, Tensor(b!) found_inf) "
        "-> ()"
    ),
    "l2_norm": "(Tensor[] tensors, bool per_tensor) -> (Tensor total, Tensor each)",
    "update_scale_": (
        "(Tensor(a!) scale, Tensor(b!) growth_tracker, Tensor(c!) hysteresis_tracker, "
        "Tensor found_inf, float growth_factor, float backoff_factor, int growth_interval, "
        "int hysteresis, float min_scale, float max_scale) -> ()"
    ),
    "split_": "(Tensor[] sources, Tensor(a!)[] halves, Tensor(b!)[] remainders) -> ()",
    "join_": "(Tensor[] halves, Tensor[] remainders, Tensor(a!)[] outputs) -> ()",
    "cross_entropy_forward": (
        "(Tensor logits, Tensor target, Tensor? weight, int ignore_index, float label_smoothing) "
        "-> (Tensor losses, Tensor statistics)"
    ),
    "cross_entropy_backward": (
        "(Tensor gradient, Tensor logits, Tensor target, Tensor statistics, Tensor? weight, "
        "int ignore_index, float label_smoothing) -> Tensor"
    ),
}

# Holds the definitions for as long as the process lives.
LIBRARY = Library(NAMESPACE, "DEF")


def _define_all() -> None:
    for name, schema in SCHEMAS.items():
        LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        fake = _on_one_device(name, _FAKES.get(name, _writes_only))
        register_fake(f"{NAMESPACE}::{name}", fake, lib=LIBRARY)


def _on_one_device(name: str, fake: Callable[..., object]) -> Callable[..., object]:
    # A call with one tensor on the meta device comes here, wherever the others are.
    arguments = getattr(getattr(torch.ops, NAMESPACE), name).default._schema.arguments
    names = [argument.name for argument in arguments]

    def checked(*args: object, **kwargs: object) -> object:
        check_one_device(name, dict(zip(names, args, strict=False)) | kwargs)
        return fake(*args, **kwargs)

    return checked


def _writes_only(*args: object, **kwargs: object) -> None:
    """Stand for an operation that returns nothing: its tensors keep shape and dtype."""


def _l2_norm(tensors: Sequence[Tensor], per_tensor: bool) -> tuple[Tensor, Tensor]:
    like = tensors[0] if tensors else torch.empty(0)
    each = like.new_empty(len(tensors) if per_tensor else 0, dtype=torch.float32)
    return like.new_empty((), dtype=torch.float32), each


def _cross_entropy_forward(
    logits: Tensor, target: Tensor, weight: Tensor | None, *settings: float
) -> tuple[Tensor, Tensor]:
    num_rows = logits.size(0)
    losses = logits.new_empty(num_rows, dtype=torch.float32)
    return losses, logits.new_empty((num_rows, 3), dtype=torch.float32)


def _cross_entropy_backward(gradient: Tensor, logits: Tensor, *others: object) -> Tensor:
    return logits.new_empty(logits.shape)


_FAKES: Mapping[str, Callable[..., object]] = {
    "l2_norm": _l2_norm,
    "cross_entropy_forward": _cross_entropy_forward,
    "cross_entropy_backward": _cross_entropy_backward,
}

_define_all()

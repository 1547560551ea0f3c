"""Schemas and fake kernels of all operations: ``torch.ops.lightning_mp.*`` exists from here on.

What an operation does is written in the module of its Python face, such as
:mod:`lightning_mp.kernels.adam`. Common to all: the tensors of a call live on one device, dtypes
may be mixed, tensors without elements are allowed, and scalars that live on the device are float32
tensors of one element. An operation that is refused has written nothing.
"""

from collections.abc import Mapping

import torch
from torch.library import Library, register_fake

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
        "bool zero_gradients, bool adopt) -> ()"
    ),
    "sgd_step_": (
        "(Tensor(a!)[] gradients, Tensor(b!)[] weights, Tensor(c!)[] copies, "
        "Tensor(d!)[] momentum_buffers, *, Tensor? factor, Tensor? found_inf, Tensor? lr_tensor, "
        "float lr, float momentum, float dampening, float weight_decay, bool nesterov, "
        "bool maximize, bool is_first, float? clip_value, bool zero_gradients, bool adopt) -> ()"
    ),
}

# Holds the definitions for as long as the process lives.
LIBRARY = Library(NAMESPACE, "DEF")


def _define_all() -> None:
    for name, schema in SCHEMAS.items():
        LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        if schema.endswith("-> ()"):
            register_fake(f"{NAMESPACE}::{name}", _writes_only, lib=LIBRARY)


def _writes_only(*args: object, **kwargs: object) -> None:
    """Stand for an operation that returns nothing: its tensors keep shape and dtype."""


_define_all()

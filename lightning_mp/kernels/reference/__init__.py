"""Multi-tensor operations in plain torch: the readable form of every kernel, and its fallback."""

from collections.abc import Callable, Mapping
from typing import Any

from lightning_mp.kernels.reference.adam import adam_step_
from lightning_mp.kernels.reference.cross_entropy import (
    cross_entropy_backward,
    cross_entropy_forward,
)
from lightning_mp.kernels.reference.gradient_stats import gradient_stats_, l2_norm
from lightning_mp.kernels.reference.loss_scale import update_scale_
from lightning_mp.kernels.reference.passes import (
    clip_coefficient,
    copy_to_float32,
    finite_flags,
    total_norm,
)
from lightning_mp.kernels.reference.scale_copy import axpby_, scale_copy_
from lightning_mp.kernels.reference.sgd import sgd_step_
from lightning_mp.kernels.reference.split import join_, split_

__all__ = [
    "REFERENCES",
    "clip_coefficient",
    "copy_to_float32",
    "finite_flags",
    "total_norm",
]

# One function per operation of lightning_mp.kernels.definitions, with the same arguments.
REFERENCES: Mapping[str, Callable[..., Any]] = {
    "gradient_stats_": gradient_stats_,
    "adam_step_": adam_step_,
    "sgd_step_": sgd_step_,
    "scale_copy_": scale_copy_,
    "axpby_": axpby_,
    "l2_norm": l2_norm,
    "update_scale_": update_scale_,
    "split_": split_,
    "join_": join_,
    "cross_entropy_forward": cross_entropy_forward,
    "cross_entropy_backward": cross_entropy_backward,
}

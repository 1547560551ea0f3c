"""Tables of the forward context of O2 and O3: which torch functions get which treatment, and why.

A function is listed under each binding that a function mode sees: ``F.layer_norm`` hides the
``torch.layer_norm`` below it, but users call both. A name this torch version lacks is left out.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "ATTENTION",
    "BACKWARD",
    "FP32_INSIDE",
    "LOSSES",
    "LOSSES_WITH_CALLBACK",
    "MIXED_NORMS",
    "NORMS",
    "SAME_DTYPE",
    "SAME_DTYPE_COMPOSITE",
    "SAME_DTYPE_IN_PLACE",
]

Functions = frozenset[Callable]


def _find(owner: object, names: str) -> Functions:
    return frozenset(getattr(owner, name) for name in names.split() if hasattr(owner, name))


# A loss in half loses its small terms and differences. cross_entropy has a rule of its own.
LOSSES = _find(
    F,
    "binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss ctc_loss "
    "gaussian_nll_loss hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss "
    "multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss nll_loss "
    "poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss",
) | _find(
    torch,
    "binary_cross_entropy_with_logits cosine_embedding_loss ctc_loss hinge_embedding_loss kl_div "
    "margin_ranking_loss poisson_nll_loss triplet_margin_loss",
)

# A loss that calls the user's distance function, whose weights may be half.
LOSSES_WITH_CALLBACK = frozenset([F.triplet_margin_with_distance_loss])

# Functions that want one dtype. Code written for autocast mixes: noise from torch.randn, a zero
# hidden state, a float mask, the FP32 output of an own operator. Autocast rounds these to half.
SAME_DTYPE = (
    _find(
        torch,
        "addbmm addmm addmv addr baddbmm bmm chain_matmul dot einsum inner matmul mm mv tensordot "
        "vdot bilinear prelu conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d "
        "conv_transpose3d convolution lstm gru rnn_relu rnn_tanh lstm_cell gru_cell rnn_relu_cell "
        "rnn_tanh_cell",
    )
    | _find(
        Tensor,
        "__matmul__ __rmatmul__ addbmm addmm addmv addr baddbmm bmm dot inner matmul mm mv prelu "
        "vdot",
    )
    | _find(torch.linalg, "matmul multi_dot vecdot")
    | _find(F, "bilinear embedding_bag linear prelu")
)

# The same, but the first operand is written to, so it keeps its dtype.
SAME_DTYPE_IN_PLACE = _find(Tensor, "addbmm_ addmm_ addmv_ addr_ baddbmm_")

# The same, written in Python: the calls inside have rules too.
SAME_DTYPE_COMPOSITE = _find(F, "linear_cross_entropy multi_head_attention_forward")

# On CPUs without half matrix units its half backward is slower than FP32: bf16 2.6x, fp16 6x.
ATTENTION = frozenset([F.scaled_dot_product_attention])

_NATIVE_CPU_NORMS = "batch_norm group_norm instance_norm layer_norm"

# Norm layers keep FP32 parameters and take half activations.
NORMS = _find(F, f"{_NATIVE_CPU_NORMS} rms_norm") | _find(torch, f"{_NATIVE_CPU_NORMS} rms_norm")

# Device type -> norms whose kernels take that mixture as it is. CPU: tried for both half dtypes,
# forward and backward (rms_norm runs, but warns). CUDA: batch norm only.
MIXED_NORMS = {
    "cpu": _find(F, _NATIVE_CPU_NORMS) | _find(torch, _NATIVE_CPU_NORMS),
    "cuda": frozenset([F.batch_norm, torch.batch_norm]),
}

# local_response_norm squares its input and has no half kernel on CPU; cdist has none anywhere;
# grid_sample wants one dtype, and half has too few bits for FP32 coordinates to be rounded.
FP32_INSIDE = frozenset([F.grid_sample, F.local_response_norm, torch.cdist])

# torch takes a mode off while it handles a call, backward included, where activation checkpointing
# computes the forward again.
BACKWARD = frozenset([Tensor.backward, torch.autograd.backward, torch.autograd.grad])

"""The names of ``apex.fp16_utils``, for scripts that handle half models and FP32 masters by hand.

New code is better off with an opt level: ``lightning_mp.amp`` does all of this by itself.
"""

from torch.nn.utils import clip_grad_norm_ as clip_grad_norm

from lightning_mp.fp16_utils.conversion import (
    BN_convert_float,
    convert_module,
    convert_network,
    network_to_half,
)
from lightning_mp.fp16_utils.dynamic_loss_scaler import DynamicLossScaler
from lightning_mp.fp16_utils.fp16_model import FP16Model
from lightning_mp.fp16_utils.fp16_optimizer import FP16_Optimizer
from lightning_mp.fp16_utils.input_cast import tofp16
from lightning_mp.fp16_utils.loss_scaler import LossScaler
from lightning_mp.fp16_utils.master_params import (
    master_params_to_model_params,
    model_grads_to_master_grads,
    prep_param_lists,
    to_python_float,
)

__all__ = [
    "BN_convert_float",
    "DynamicLossScaler",
    "FP16Model",
    "FP16_Optimizer",
    "LossScaler",
    "clip_grad_norm",
    "convert_module",
    "convert_network",
    "master_params_to_model_params",
    "model_grads_to_master_grads",
    "network_to_half",
    "prep_param_lists",
    "to_python_float",
    "tofp16",
]

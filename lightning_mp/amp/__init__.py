"""Mixed precision with opt levels, free of any training framework; the API of Apex's amp."""

from lightning_mp.amp._amp_state import _amp_state, master_params
from lightning_mp.amp.apex_handle import AmpHandle, init
from lightning_mp.amp.engine import AmpEngine
from lightning_mp.amp.frontend import (
    adopt,
    initialize,
    load_state_dict,
    scale_loss,
    set_half_dtype,
    state_dict,
)
from lightning_mp.amp.function_casts import (
    FunctionCasts,
    casts_are_active,
    clear_cast_cache,
    disable_casts,
)
from lightning_mp.amp.function_registry import (
    float_function,
    half_function,
    promote_function,
    register_float_function,
    register_half_function,
    register_promote_function,
    unregister,
    unregister_all,
)
from lightning_mp.amp.host_flag import HostFlag
from lightning_mp.amp.loss_scaler import LossScaler
from lightning_mp.amp.opt_levels import (
    OPT_LEVELS,
    PRECISION_LEVELS,
    OptLevelProperties,
    parse_precision,
    resolve_opt_level,
)
from lightning_mp.amp.overflow import LossScaleCollapseWarning, OverflowRecord, OverflowTracker
from lightning_mp.amp.scaler_state import parse_loss_scale
from lightning_mp.amp.tree import cast_floating, map_tensors

__all__ = [
    "OPT_LEVELS",
    "PRECISION_LEVELS",
    "AmpEngine",
    "AmpHandle",
    "FunctionCasts",
    "HostFlag",
    "LossScaleCollapseWarning",
    "LossScaler",
    "OptLevelProperties",
    "OverflowRecord",
    "OverflowTracker",
    "_amp_state",
    "adopt",
    "cast_floating",
    "casts_are_active",
    "clear_cast_cache",
    "disable_casts",
    "float_function",
    "half_function",
    "init",
    "initialize",
    "load_state_dict",
    "map_tensors",
    "master_params",
    "parse_loss_scale",
    "parse_precision",
    "promote_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "resolve_opt_level",
    "scale_loss",
    "set_half_dtype",
    "state_dict",
    "unregister",
    "unregister_all",
]

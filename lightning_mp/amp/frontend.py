"""The API of Apex's amp on this engine: change one import and go on.

``initialize`` casts models and lets optimizers hold FP32 masters; ``scale_loss`` surrounds each
backward. Reference: the public API of NVIDIA Apex amp, removed there in 2025.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_mp.amp._amp_state import _amp_state, maybe_print
from lightning_mp.amp.amp_session import AmpSession
from lightning_mp.amp.apex_arguments import (
    check_are_optimizers,
    check_models,
    check_optimizers,
    check_output_dtype,
    model_list,
    optimizer_list,
    parse_half_dtype,
    parse_num_losses,
    raise_half_parameters,
    scaled_optimizers,
    scaler_bounds,
)
from lightning_mp.amp.apex_handle import AmpHandle
from lightning_mp.amp.apex_properties import ApexProperties
from lightning_mp.amp.engine import AmpEngine
from lightning_mp.amp.loss_scaler import LossScaler
from lightning_mp.amp.opt_levels import OptLevelProperties, resolve_opt_level
from lightning_mp.amp.own_hook import remove_casts

__all__ = ["adopt", "initialize", "load_state_dict", "scale_loss", "set_half_dtype", "state_dict"]


def initialize(
    models: Any,
    optimizers: Any = None,
    enabled: bool = True,
    opt_level: str = "O1",
    cast_model_type: torch.dtype | Literal[False] | None = None,
    patch_torch_functions: bool | None = None,
    keep_batchnorm_fp32: bool | str | None = None,
    master_weights: bool | str | None = None,
    loss_scale: float | str | None = None,
    cast_model_outputs: torch.dtype | None = None,
    num_losses: int = 1,
    verbosity: int = 1,
    min_loss_scale: float | None = None,
    max_loss_scale: float = 2.0**24,
    *,
    half_dtype: torch.dtype | Literal["fp16", "bf16"] | None = None,
    keep_norms_fp32: bool | str | None = None,
    allow_banned: bool = False,
    fused: bool = True,
) -> Any:
    """Set models and optimizers up for mixed precision, in place.

    Call it once, after the models are on their device and before they are wrapped for data
    parallelism. A later call, for other models, leaves the earlier ones as they work; one for the
    same model, which O0 and O1 leave in float32, replaces its casts.

    Args:
        models: A module, or a list or tuple of modules, in float32.
        optimizers: A torch optimizer, a list or tuple of them, or ``None``. Afterwards those of O2
            hold FP32 masters, see :func:`master_params`.
        enabled: ``False`` returns everything as it is, and ``scale_loss`` does nothing.
        opt_level: ``"O0"``, ``"O1"``, ``"O2"`` or ``"O3"`` (letter O).
        cast_model_type: Dtype of the model in place of the level's; ``False`` casts nothing.
        patch_torch_functions: Whether functions cast their inputs (O1 only).
        keep_batchnorm_fp32: Whether batch norms stay in float32.
        master_weights: Whether optimizers step on FP32 masters; ``"split"`` (bfloat16 only) keeps
            them as weights and 16-bit remainders, exactly, in 2 bytes less per parameter.
        loss_scale: ``"dynamic"`` or a fixed scale.
        cast_model_outputs: Dtype of the models' floating outputs; float32 by default.
        num_losses: Number of losses with scalers of their own, see ``loss_id`` of ``scale_loss``.
        verbosity: 0 prints nothing, 1 the start and overflows, 2 more.
        min_loss_scale: Floor of a dynamic scale; 2**-10 by default.
        max_loss_scale: Cap of a dynamic scale.
        half_dtype: float16 or bfloat16, or ``"fp16"`` or ``"bf16"``; that of ``set_half_dtype`` by
            default.
        keep_norms_fp32: Whether all norm layers stay in float32.
        allow_banned: Whether banned functions run in float32 at O1 instead of being refused.
        fused: Whether Adam, AdamW and SGD of torch, which step on FP32 masters at O2, are stepped
            in one pass over memory, exactly as they would.

    Returns:
        What was passed: the models, or models and optimizers; a list for a list.

    Raises:
        TypeError: A model or an optimizer is none.
        ValueError: A value is not allowed, two contradict each other, or a model or optimizer
            cannot be set up. Nothing is changed then.

    Example:
        >>> model = nn.Linear(7, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> model, optimizer = initialize(model, optimizer, opt_level="O2", verbosity=0)
        >>> with scale_loss(model(torch.ones(5, 7)).sum(), optimizer) as scaled_loss:
        ...     scaled_loss.backward()
        >>> optimizer.step()
    """
    given_models = model_list(models)
    given_optimizers = optimizer_list(optimizers)
    num_scalers = parse_num_losses(num_losses)
    returned = models if optimizers is None else (models, optimizers)
    if not enabled:
        _register(AmpSession(None), given_optimizers, verbosity)
        return returned
    properties = resolve_opt_level(
        opt_level,
        half_dtype=_amp_state.half_dtype if half_dtype is None else parse_half_dtype(half_dtype),
        cast_model_type=_override_of(opt_level, cast_model_type),
        patch_torch_functions=patch_torch_functions,
        keep_batchnorm_fp32=keep_batchnorm_fp32,
        keep_norms_fp32=keep_norms_fp32,
        master_weights=master_weights,
        loss_scale=loss_scale,
    )
    check_output_dtype(cast_model_outputs)
    bounds = scaler_bounds(min_loss_scale, max_loss_scale)
    scalers = [LossScaler(properties.loss_scale, **bounds) for _ in range(num_scalers)]
    check_models(given_models, properties)
    check_optimizers(given_optimizers, given_models, properties)
    engine = AmpEngine(
        properties,
        scalers,
        output_dtype=cast_model_outputs,
        allow_banned=allow_banned,
        raises_inputs=properties.cast_model_type == torch.float32,
        fused=fused,
    )
    for model in given_models:
        remove_casts(model)
    raise_half_parameters(given_models)
    engine.convert(*given_models)
    engine.own(given_optimizers).watch(given_models)
    _register(AmpSession(engine), given_optimizers, verbosity)
    is_on_for_all = isinstance(_amp_state.handle, AmpHandle) and _amp_state.handle.is_region_open
    if engine.casts is not None and not is_on_for_all:
        _amp_state.handle = AmpHandle(engine.casts)
    _print_banner(properties)
    return returned


@contextmanager
def scale_loss(
    loss: Tensor,
    optimizers: Optimizer | Iterable[Optimizer],
    loss_id: int = 0,
    model: nn.Module | None = None,
    delay_unscale: bool = False,
    delay_overflow_check: bool = False,
) -> Iterator[Tensor]:
    """Surround a backward: yield the scaled loss, and unscale the gradients at the end.

    Inside, gradients from before are put aside; after an exception they are back.

    Args:
        loss: Scalar loss.
        optimizers: The optimizer, or all those, whose gradients the backward makes.
        loss_id: Index of the loss's scaler, below ``num_losses``.
        model: Not used; Apex had it for later use.
        delay_unscale: Leave the gradients scaled, for another backward before the step. The last
            one before the step must not delay.
        delay_overflow_check: Let the loss scale move at a later backward only.

    Yields:
        The scaled loss.

    Raises:
        RuntimeError: ``initialize`` was not called, or not with this optimizer.
        TypeError: The loss is no tensor, or an optimizer is none.
        ValueError: There is no optimizer, or they are of several ``initialize`` calls.
        IndexError: There is no such scaler.
    """
    given = scaled_optimizers(optimizers)
    session = _session_of(given)
    with session.scale_loss(
        loss,
        given,
        loss_id=loss_id,
        delay_unscale=delay_unscale,
        delay_overflow_check=delay_overflow_check,
    ) as scaled_loss:
        yield scaled_loss


def state_dict(destination: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the state of the loss scalers of the last ``initialize``, in Apex's format.

    Args:
        destination: Mapping to fill; a new one by default.

    Returns:
        ``{"loss_scaler0": {"loss_scale": float, "unskipped": int}, ...}``; empty if mixed precision
        is off.

    Raises:
        RuntimeError: ``initialize`` was not called.
    """
    destination = OrderedDict() if destination is None else destination
    for index, scaler in enumerate(_last_session().loss_scalers):
        destination[f"loss_scaler{index}"] = {
            "loss_scale": scaler.loss_scale(),
            "unskipped": scaler._unskipped,
        }
    return destination


def load_state_dict(state_dict: Mapping[str, Mapping[str, Any]]) -> None:
    """Restore the loss scalers of the last ``initialize``, by their order.

    Args:
        state_dict: What :func:`state_dict`, or Apex's, returned. If the numbers of scalers
            differ, those that both have are restored, and it is said.

    Raises:
        RuntimeError: ``initialize`` was not called.
        TypeError: It is no mapping.
        ValueError: A key or value is none of a loss scaler; nothing is changed then.
    """
    scalers = _last_session().loss_scalers
    if not isinstance(state_dict, Mapping):
        raise TypeError(
            f"amp state = {type(state_dict).__name__}; allowed: a mapping; pass what "
            "amp.state_dict() returned, such as checkpoint['amp']"
        )
    unknown = [key for key in state_dict if "loss_scaler" not in str(key)]
    if unknown:
        raise ValueError(
            f"amp state has the key {unknown[0]!r}; allowed: 'loss_scaler0', 'loss_scaler1', ...; "
            "pass what amp.state_dict() returned, such as checkpoint['amp']"
        )
    states = list(state_dict.values())
    if len(states) != len(scalers):
        maybe_print(
            f"Warning: the state has {len(states)} loss scalers and amp.initialize made "
            f"{len(scalers)}; the first {min(len(states), len(scalers))} are restored."
        )
    before = [scaler.scaler.state_dict() for scaler in scalers]
    try:
        for scaler, state in zip(scalers, states, strict=False):
            scaler.load(state["loss_scale"], state["unskipped"])
    except (KeyError, TypeError, ValueError) as error:
        for scaler, old in zip(scalers, before, strict=True):
            scaler.scaler.load_state_dict(old)
        raise ValueError(
            f"amp state = {dict(state_dict)!r}; allowed: a positive 'loss_scale' and a count "
            "'unskipped' for each loss scaler; pass what amp.state_dict() returned"
        ) from error


def adopt(parameters: Iterable[Tensor]) -> None:
    """Take over half weights that were written from outside, to the last bit.

    With ordinary masters the next step finds such writes by itself. Split masters cannot tell;
    without this call a written value is off by less than its last bit.

    Args:
        parameters: Parameters that were written, of the models of the last ``initialize``.

    Raises:
        RuntimeError: ``initialize`` was not called.
    """
    engine = _last_session().engine
    if engine is not None:
        engine.masters.adopt_all(parameters)


def set_half_dtype(dtype: torch.dtype | Literal["fp16", "bf16"]) -> None:
    """Choose the half dtype of later ``initialize`` and ``init`` calls.

    Args:
        dtype: float16, as at first, or bfloat16; or ``"fp16"`` or ``"bf16"``.

    Raises:
        ValueError: It is neither.
    """
    _amp_state.half_dtype = parse_half_dtype(dtype)


def _override_of(opt_level: str, dtype: Any) -> Any:
    # What the models of O1 have anyway; Apex took it.
    return None if opt_level == "O1" and dtype == torch.float32 else dtype


def _register(session: AmpSession, optimizers: list[Optimizer], verbosity: int) -> None:
    _amp_state.add(session, optimizers)
    _amp_state.verbosity = verbosity


def _last_session() -> AmpSession:
    if _amp_state.session is None:
        raise RuntimeError(
            "amp was not initialised; call model, optimizer = amp.initialize(model, optimizer, "
            "opt_level=...) first"
        )
    return _amp_state.session


def _session_of(optimizers: list[Any]) -> AmpSession:
    last = _last_session()
    each = [_amp_state.session_of(item) for item in optimizers]
    sessions = {id(found): found for found in each if found is not None}
    if len(sessions) > 1:
        raise ValueError(
            f"the {len(optimizers)} optimizers come from {len(sessions)} calls of amp.initialize; "
            "one is allowed in scale_loss; surround each backward with its own"
        )
    strangers = [
        type(item).__name__ for item, found in zip(optimizers, each, strict=True) if found is None
    ]
    if strangers and last.engine is not None:
        check_are_optimizers(optimizers)
        raise RuntimeError(
            f"{strangers[0]} was not initialised; pass it to amp.initialize(model, optimizer, ...) "
            "together with its model, and use what that returns"
        )
    return next(iter(sessions.values()), last)


def _print_banner(properties: OptLevelProperties) -> None:
    # Line by line as Apex printed them: existing log readers look for these names.
    maybe_print(f"Selected optimization level {properties.opt_level}", rank0=True)
    for name, value in ApexProperties(properties).options.items():
        maybe_print(f"{name:<22} : {value}", rank0=True)

"""Opt levels: one frozen record per level, overrides, and checks that explain.

The table is that of Apex amp with one more property: ``keep_norms_fp32`` covers every norm layer
where ``keep_batchnorm_fp32`` covers batch norms only. The half dtype may be float16 or bfloat16.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch

from lightning_mp.amp.scaler_state import LossScale, parse_loss_scale

__all__ = [
    "HALF_DTYPES",
    "HALF_NAMES",
    "OPT_LEVELS",
    "PRECISION_LEVELS",
    "OptLevelProperties",
    "parse_precision",
    "resolve_opt_level",
]

HALF_NAMES: Mapping[str, torch.dtype] = MappingProxyType(
    {"fp16": torch.float16, "bf16": torch.bfloat16}
)
HALF_DTYPES = frozenset(HALF_NAMES.values())
# "o2", "02", "0O", "2", "O2_bf16", "O2bfloat16", "O2-fp16".
_MISSPELT_LEVEL = re.compile(
    r"\s*[o0]?-?([0-3]|(?<=[o0])o)[-_]?(fp16|float16|half|bf16|bfloat16)?\s*", re.IGNORECASE
)


@dataclass(frozen=True)
class OptLevelProperties:
    """Hold what an opt level means.

    Attributes:
        opt_level: ``"O0"`` to ``"O3"``.
        cast_model_type: Dtype the model is cast to; ``None`` leaves the model alone.
        patch_torch_functions: Whether functions cast their inputs by list (O1).
        keep_batchnorm_fp32: Whether batch norms stay in float32; ``None`` if nothing is cast.
        keep_norms_fp32: Whether all norm layers stay in float32; ``None`` if nothing is cast.
            ``False`` beside ``keep_batchnorm_fp32=True`` keeps only the batch norms.
        master_weights: Whether the optimizer steps on float32 masters; ``"split"`` if these are the
            bfloat16 weights and 16-bit remainders; ``None`` at O1.
        loss_scale: ``"dynamic"`` or a fixed factor.
        function_dtype: Half dtype that functions cast their inputs to; ``None`` if they do not.
    """

    opt_level: str
    cast_model_type: torch.dtype | None
    patch_torch_functions: bool
    keep_batchnorm_fp32: bool | None
    keep_norms_fp32: bool | None
    master_weights: bool | Literal["split"] | None
    loss_scale: LossScale
    function_dtype: torch.dtype | None = None

    @property
    def half_dtype(self) -> torch.dtype | None:
        """Return the half dtype the model is cast to, or ``None`` if it is not cast to half."""
        return self.cast_model_type if self.cast_model_type in HALF_DTYPES else None

    @property
    def is_dynamic(self) -> bool:
        """Return whether the loss scale moves."""
        return self.loss_scale == "dynamic"

    def describe(self) -> dict[str, str | float | bool | None]:
        """Return the properties as plain values, fit for a checkpoint or a table.

        Returns:
            One entry per property; a dtype by its name, such as ``"float16"``.
        """
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            name: _dtype_name(value) if isinstance(value, torch.dtype) else value
            for name, value in values.items()
        }


OPT_LEVELS: Mapping[str, OptLevelProperties] = MappingProxyType(
    {
        properties.opt_level: properties
        for properties in (
            OptLevelProperties("O0", torch.float32, False, None, None, False, 1.0),
            OptLevelProperties("O1", None, True, None, None, None, "dynamic", torch.float16),
            OptLevelProperties("O2", torch.float16, False, True, True, True, "dynamic"),
            OptLevelProperties("O3", torch.float16, False, False, False, False, 1.0),
        )
    }
)
"""Read-only table of the levels, with float16 as the half dtype."""

PRECISION_LEVELS: tuple[str, ...] = (
    "O0",
    "O1",
    "O1-bf16",
    "O2",
    "O2-bf16",
    "O3",
    "O3-bf16",
)
"""The ``precision`` strings that :func:`parse_precision` understands."""


def resolve_opt_level(
    opt_level: str,
    *,
    half_dtype: torch.dtype = torch.float16,
    cast_model_type: torch.dtype | Literal[False] | None = None,
    patch_torch_functions: bool | None = None,
    keep_batchnorm_fp32: bool | str | None = None,
    keep_norms_fp32: bool | str | None = None,
    master_weights: bool | str | None = None,
    loss_scale: float | str | None = None,
) -> OptLevelProperties:
    """Resolve a level and its overrides into one consistent record.

    An override that is not ``None`` replaces the level's value. A value not given follows those
    that were: ``keep_norms_fp32`` follows ``keep_batchnorm_fp32=False``, and no half, no masters.

    Args:
        opt_level: ``"O0"``, ``"O1"``, ``"O2"`` or ``"O3"`` (letter O).
        half_dtype: float16 or bfloat16. With bfloat16 a dynamic level has a loss scale of 1.
        cast_model_type: float32, float16 or bfloat16; ``False`` casts nothing.
        patch_torch_functions: Whether functions cast their inputs; ``True`` at O1 only.
        keep_batchnorm_fp32: Whether batch norms stay in float32. This and the other two switches
            also take the strings ``"True"`` and ``"False"`` of a command line.
        keep_norms_fp32: Whether all norm layers stay in float32.
        master_weights: Whether the optimizer steps on float32 masters; ``"split"`` keeps them as
            bfloat16 weights and 16-bit remainders, in 2 bytes less each.
        loss_scale: ``"dynamic"``, a positive number, or such a number as a string.

    Returns:
        The resolved properties.

    Raises:
        ValueError: If a value is not allowed or two of them contradict each other.

    Example:
        >>> resolve_opt_level("O2", half_dtype=torch.bfloat16).loss_scale
        1.0
    """
    level = _level_of(opt_level)
    _check_half_dtype(half_dtype)
    keep_batchnorm = _switch("keep_batchnorm_fp32", keep_batchnorm_fp32)
    keep_norms = _switch("keep_norms_fp32", keep_norms_fp32)
    masters = "split" if master_weights == "split" else _switch("master_weights", master_weights)
    patching = _switch("patch_torch_functions", patch_torch_functions)
    _check_patching(level, patching)
    if level.patch_torch_functions:
        _check_only_patched(cast_model_type or None, keep_batchnorm, keep_norms, masters)

    cast = _cast_dtype(level, half_dtype, cast_model_type)
    is_half = cast in HALF_DTYPES
    keep_batchnorm, keep_norms = _kept_norms(level, is_half, keep_batchnorm, keep_norms)
    default_scale = _default_loss_scale(level, cast if is_half else half_dtype)
    is_patching = level.patch_torch_functions if patching is None else patching
    return OptLevelProperties(
        opt_level=level.opt_level,
        cast_model_type=cast,
        patch_torch_functions=is_patching,
        keep_batchnorm_fp32=keep_batchnorm,
        keep_norms_fp32=keep_norms,
        master_weights=_master_weights(level, cast, masters),
        loss_scale=default_scale if loss_scale is None else parse_loss_scale(loss_scale),
        function_dtype=half_dtype if is_patching else None,
    )


def parse_precision(precision: str) -> tuple[str, torch.dtype]:
    """Split a ``precision`` string into its opt level and half dtype.

    Args:
        precision: One of :data:`PRECISION_LEVELS`; without a suffix the half dtype is float16.

    Returns:
        The opt level and the half dtype.

    Raises:
        ValueError: If the string is not one of them.

    Example:
        >>> parse_precision("O2-bf16")
        ('O2', torch.bfloat16)
    """
    if precision in PRECISION_LEVELS:
        level, _, suffix = precision.partition("-")
        return level, torch.bfloat16 if suffix else torch.float16
    raise ValueError(
        f"precision = {precision!r}; allowed are {_quoted(PRECISION_LEVELS)}; "
        f"{_spelling_hint(precision, PRECISION_LEVELS)}"
    )


def _level_of(opt_level: str) -> OptLevelProperties:
    if not isinstance(opt_level, str) or opt_level not in OPT_LEVELS:
        raise ValueError(
            f"opt_level = {opt_level!r}; allowed are {_quoted(OPT_LEVELS)}; "
            f"{_spelling_hint(opt_level, OPT_LEVELS)}"
        )
    return OPT_LEVELS[opt_level]


def _check_half_dtype(half_dtype: torch.dtype) -> None:
    if half_dtype not in HALF_DTYPES:
        raise ValueError(
            f"half_dtype = {half_dtype!r}; allowed are torch.float16 and torch.bfloat16; "
            "choose one of them, or opt_level='O0' for float32"
        )


def _master_weights(
    level: OptLevelProperties, cast: torch.dtype | None, masters: bool | Literal["split"] | None
) -> bool | Literal["split"] | None:
    is_half = cast in HALF_DTYPES
    if masters == "split" and cast != torch.bfloat16:
        raise ValueError(
            f"master_weights = 'split' where the model is cast to {_dtype_name(cast)}; it is "
            "allowed where it is cast to bfloat16, whose bits are the upper ones of float32; "
            "choose bfloat16, or master_weights=True"
        )
    if masters and not is_half:
        raise ValueError(
            f"master_weights = True where the model is cast to {_dtype_name(cast)}; masters are "
            "allowed where it is cast to float16 or bfloat16; leave master_weights out, or choose "
            "opt_level='O2'"
        )
    if masters is None:
        return level.master_weights if is_half or cast is level.cast_model_type else False
    return masters


def _switch(name: str, value: bool | str | None) -> bool | None:
    if isinstance(value, str) and value in ("True", "False"):
        return value == "True"
    if value is None or isinstance(value, bool):
        return value
    raise ValueError(
        f"{name} = {value!r}; allowed are True, False and None; "
        "leave it out (None) for the level's own value"
    )


def _check_patching(level: OptLevelProperties, patching: bool | None) -> None:
    if patching and not level.patch_torch_functions:
        raise ValueError(
            f"patch_torch_functions = True at {level.opt_level}; it is allowed at O1 only; "
            "leave it out, or choose opt_level='O1'"
        )


def _check_only_patched(
    cast: torch.dtype | None,
    keep_batchnorm: bool | None,
    keep_norms: bool | None,
    masters: bool | str | None,
) -> None:
    """Refuse what makes no sense at O1, where the model itself stays in float32."""
    overrides = {
        "cast_model_type": cast,
        "keep_batchnorm_fp32": keep_batchnorm,
        "keep_norms_fp32": keep_norms,
        "master_weights": masters,
    }
    for name, value in overrides.items():
        if value is not None:
            raise ValueError(
                f"{name} = {value!r} at O1; only None is allowed there, because O1 casts the "
                f"inputs of functions and leaves the model in float32; leave {name} out, or "
                "choose opt_level='O2'"
            )


def _cast_dtype(
    level: OptLevelProperties,
    half_dtype: torch.dtype,
    override: torch.dtype | Literal[False] | None,
) -> torch.dtype | None:
    if override is None:
        return level.cast_model_type if level.half_dtype is None else half_dtype
    if override is False:
        return None
    if override not in (torch.float32, *HALF_DTYPES):
        raise ValueError(
            f"cast_model_type = {override!r}; allowed are torch.float32, torch.float16, "
            "torch.bfloat16, and False to cast nothing; leave it out for the level's own dtype"
        )
    return override


def _kept_norms(
    level: OptLevelProperties,
    is_half: bool,
    keep_batchnorm: bool | None,
    keep_norms: bool | None,
) -> tuple[bool | None, bool | None]:
    if keep_batchnorm is False and keep_norms is True:
        raise ValueError(
            "keep_batchnorm_fp32 = False with keep_norms_fp32 = True; batch norms are norm "
            "layers, so both must be True or keep_norms_fp32 False; leave keep_batchnorm_fp32 out "
            "to keep all norms, or keep_norms_fp32 to keep none"
        )
    if not is_half:
        return keep_batchnorm, keep_norms
    # Whichever of the two was not given must not contradict the one that was.
    if keep_batchnorm is None:
        keep_batchnorm = keep_norms or bool(level.keep_batchnorm_fp32)
    if keep_norms is None:
        keep_norms = keep_batchnorm and bool(level.keep_norms_fp32)
    return keep_batchnorm, keep_norms


def _default_loss_scale(level: OptLevelProperties, half_dtype: torch.dtype) -> LossScale:
    # bfloat16 has the exponent range of float32: nothing underflows that scaling would save.
    return 1.0 if half_dtype is torch.bfloat16 else level.loss_scale


def _spelling_hint(value: Any, allowed: Mapping[str, Any] | tuple[str, ...]) -> str:
    hint = "the first character is the capital letter O, not the digit zero"
    spelt = _MISSPELT_LEVEL.fullmatch(str(value))
    if spelt is None:
        return f"{hint}; choose one of these"
    level = "O" + spelt[1].lower().replace("o", "0")
    guess = f"{level}-bf16" if (spelt[2] or "").lower().startswith("b") else level
    if guess in allowed:
        return f"{hint}: write {guess!r}"
    if guess not in PRECISION_LEVELS:
        return f"{hint}; choose one of these"
    return (
        f"write {level!r}, and name the half dtype apart: by half_dtype or, for amp.initialize, by "
        "amp.set_half_dtype"
    )


def _quoted(names: Mapping[str, Any] | tuple[str, ...]) -> str:
    return ", ".join(repr(name) for name in names)


def _dtype_name(dtype: torch.dtype | None) -> str:
    return "nothing" if dtype is None else str(dtype).removeprefix("torch.")

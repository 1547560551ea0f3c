"""Forward context of O2 and O3: a small function mode in place of autocast.

Weights and inputs are half already, so only what :mod:`lightning_mp.amp.forward_tables` names is
touched: losses run in FP32, float32 strangers in a matmul are rounded to half, FP32 norm layers
take half activations, and the few listed operators that are slow or missing in half run in FP32.
Everything else runs as it is: as in Apex O2, activations stay in half. Code compiled by
``torch.jit.script`` is not seen.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lightning_mp.amp import forward_tables as tables
from lightning_mp.amp.cross_entropy import half_cross_entropy
from lightning_mp.amp.opt_levels import HALF_DTYPES
from lightning_mp.amp.torch_calls import (
    Args,
    Kwargs,
    are_plain,
    cast_call,
    dtypes_of,
    without_override_check,
)

__all__ = ["HalfForwardMode"]

_FP32 = frozenset([torch.float32])


class HalfForwardMode(TorchFunctionMode):
    """Run the torch calls of a half model by the rules of O2 and O3.

    The mode keeps no state of a run: one instance may be entered again while it is active, and in
    several threads. Enter it around backward as well as forward, because activation checkpointing
    computes the forward again there.

    Args:
        dtype: Half dtype of the model, ``torch.float16`` or ``torch.bfloat16``.

    Raises:
        ValueError: If ``dtype`` is not a half dtype.

    Example:
        >>> model = torch.nn.Linear(7, 3).bfloat16()
        >>> with HalfForwardMode(torch.bfloat16):
        ...     loss = torch.nn.functional.mse_loss(model(torch.randn(5, 7)), torch.zeros(5, 3))
        >>> loss.dtype
        torch.float32
    """

    def __init__(self, dtype: torch.dtype) -> None:
        if dtype not in HALF_DTYPES:
            raise ValueError(
                f"dtype = {dtype}; allowed: torch.float16, torch.bfloat16; "
                "pass the half dtype the model was cast to"
            )
        super().__init__()
        self.dtype = dtype
        self.is_cpu_attention_fp32 = not _has_matrix_unit(dtype)

    def __torch_function__(
        self,
        func: Callable,
        types: Iterable[type],
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> Any:
        """Run one torch call, by its rule if a table names it."""
        rule = _RULES.get(func)
        if rule is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        return rule(self, func, types, args, kwargs or {})

    def _loss(self, func: Callable, types: Iterable[type], args: Args, kwargs: Kwargs) -> Any:
        args, kwargs = cast_call(args, kwargs, HALF_DTYPES, torch.float32)
        return func(*args, **kwargs)

    def _loss_with_callback(
        self, func: Callable, types: Iterable[type], args: Args, kwargs: Kwargs
    ) -> Any:
        return self._inside(func, types, *cast_call(args, kwargs, HALF_DTYPES, torch.float32))

    def _cross_entropy(
        self, func: Callable, types: Iterable[type], args: Args, kwargs: Kwargs
    ) -> Any:
        return half_cross_entropy(*args, **kwargs)

    def _same_dtype(self, func: Callable, types: Iterable[type], args: Args, kwargs: Kwargs) -> Any:
        args, kwargs = self._round_if_mixed(args, kwargs)
        return func(*args, **kwargs)

    def _same_dtype_in_place(
        self, func: Callable, types: Iterable[type], args: Args, kwargs: Kwargs
    ) -> Any:
        if _dtype_of(args[0]) == self.dtype:
            args, kwargs = self._round_if_mixed(args, kwargs)
        return func(*args, **kwargs)

    def _same_dtype_composite(
        self, func: Callable, types: Iterable[type], args: Args, kwargs: Kwargs
    ) -> Any:
        return self._inside(func, types, *self._round_if_mixed(args, kwargs))

    def _attention(self, func: Callable, types: Iterable[type], args: Args, kwargs: Kwargs) -> Any:
        query, *_ = args or kwargs.values()
        is_slow = self.is_cpu_attention_fp32 and self.dtype in dtypes_of(args, kwargs)
        if not is_slow or query.device.type != "cpu":
            return self._same_dtype(func, types, args, kwargs)
        args, kwargs = cast_call(args, kwargs, HALF_DTYPES, torch.float32)
        return func(*args, **kwargs).to(self.dtype)

    def _norm(self, func: Callable, types: Iterable[type], args: Args, kwargs: Kwargs) -> Any:
        tensor, args, kwargs = _split_input(args, kwargs)
        parameters = dtypes_of(args, kwargs)
        dtype = _dtype_of(tensor)
        if dtype == torch.float32 and parameters == {self.dtype}:
            return func(tensor.to(self.dtype), *args, **kwargs)
        is_mixed = dtype in HALF_DTYPES and parameters == _FP32
        if is_mixed and func not in tables.MIXED_NORMS.get(tensor.device.type, ()):
            return func(tensor.float(), *args, **kwargs).to(dtype)
        return func(tensor, *args, **kwargs)

    def _fp32_inside(
        self, func: Callable, types: Iterable[type], args: Args, kwargs: Kwargs
    ) -> Any:
        tensor, args, kwargs = _split_input(args, kwargs)
        dtype = _dtype_of(tensor)
        if dtype is None or not {dtype, *dtypes_of(args, kwargs)} & HALF_DTYPES:
            return func(tensor, *args, **kwargs)
        args, kwargs = cast_call((tensor, *args), kwargs, HALF_DTYPES, torch.float32)
        return func(*args, **kwargs).to(dtype)

    def _inside(self, func: Callable, types: Iterable[type], args: Args, kwargs: Kwargs) -> Any:
        """Run the body of a Python function with the mode on, so that the calls in it have rules.

        The function would hand itself to the mode again, without end; its own check for overrides
        is therefore answered with no. Not so for tensor subclasses, which may take the call over,
        nor under a compiler, which cannot trace this.
        """
        is_plain = are_plain(types) and not torch.compiler.is_compiling()
        body = without_override_check(func) if is_plain else None
        if body is None:
            return func(*args, **kwargs)
        with self:
            return body(*args, **kwargs)

    def _round_if_mixed(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Round float32 arguments to half if there are half ones among them."""
        dtypes = dtypes_of(args, kwargs)
        if self.dtype in dtypes and torch.float32 in dtypes:
            return cast_call(args, kwargs, _FP32, self.dtype)
        return args, kwargs


_RULES: dict[Callable, Callable[..., Any]] = {
    **dict.fromkeys(tables.LOSSES, HalfForwardMode._loss),
    **dict.fromkeys(tables.LOSSES_WITH_CALLBACK, HalfForwardMode._loss_with_callback),
    **dict.fromkeys(tables.SAME_DTYPE, HalfForwardMode._same_dtype),
    **dict.fromkeys(tables.SAME_DTYPE_IN_PLACE, HalfForwardMode._same_dtype_in_place),
    **dict.fromkeys(tables.SAME_DTYPE_COMPOSITE, HalfForwardMode._same_dtype_composite),
    **dict.fromkeys(tables.ATTENTION, HalfForwardMode._attention),
    **dict.fromkeys(tables.NORMS, HalfForwardMode._norm),
    **dict.fromkeys(tables.FP32_INSIDE, HalfForwardMode._fp32_inside),
    **dict.fromkeys(tables.BACKWARD, HalfForwardMode._inside),
    F.cross_entropy: HalfForwardMode._cross_entropy,
}


def _has_matrix_unit(dtype: torch.dtype) -> bool:
    """Whether the CPU multiplies half matrices natively; False where torch cannot tell."""
    name = "_is_amx_fp16_supported" if dtype == torch.float16 else "_is_amx_tile_supported"
    return bool(getattr(torch.cpu, name, bool)())


def _split_input(args: Args, kwargs: Kwargs) -> tuple[Any, Args, Kwargs]:
    """Split off the first argument, given by place or by name."""
    if args:
        return args[0], args[1:], kwargs
    others = {name: value for name, value in kwargs.items() if name != "input"}
    return kwargs["input"], (), others


def _dtype_of(value: Any) -> torch.dtype | None:
    """Return a tensor's dtype, None for foreign classes with an override of their own."""
    return value.dtype if isinstance(value, Tensor) else None

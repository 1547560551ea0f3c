"""The function mode of O1: casts the arguments of torch functions by the table.

Weights stay FP32; what :mod:`lightning_mp.amp.op_lists` names is run in half, in FP32 or in the
wider of its dtypes, the rest in the dtypes it is given. No namespace is patched: code outside the
mode is not affected. Code compiled by ``torch.jit.script`` is not seen.
"""

from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lightning_mp.amp.cast_mark import casts_are_off
from lightning_mp.amp.op_lists import Policy
from lightning_mp.amp.opt_levels import HALF_DTYPES
from lightning_mp.amp.policy_table import POLICIES
from lightning_mp.amp.torch_calls import (
    Args,
    Kwargs,
    are_plain,
    cast_call,
    dtypes_of,
    map_call,
    without_override_check,
)
from lightning_mp.amp.weight_cast_cache import WeightCastCache

__all__ = ["FunctionCastMode"]

_FP32 = frozenset([torch.float32])
_CASTABLE = HALF_DTYPES | _FP32


class FunctionCastMode(TorchFunctionMode):
    """Run torch calls by the policies of O1.

    One instance may be entered again while it is on, and in several threads. It does not know
    where a forward ends: whoever enters it clears :attr:`cache` then, as
    :class:`~lightning_mp.amp.function_casts.FunctionCasts` does.

    Args:
        half_dtype: ``torch.float16`` or ``torch.bfloat16``.
        allow_banned: Run banned functions in FP32 instead of refusing half tensors.

    Raises:
        ValueError: If ``half_dtype`` is not a half dtype.

    Example:
        >>> model = nn.Linear(7, 3)
        >>> with FunctionCastMode(torch.bfloat16):
        ...     hidden = model(torch.randn(5, 7))
        ...     hidden.dtype, hidden.softmax(-1).dtype
        (torch.bfloat16, torch.float32)
    """

    def __init__(self, half_dtype: torch.dtype, *, allow_banned: bool = False) -> None:
        if half_dtype not in HALF_DTYPES:
            raise ValueError(
                f"half_dtype = {half_dtype}; allowed: torch.float16, torch.bfloat16; "
                "choose the dtype that matrix products are to run in"
            )
        super().__init__()
        self.half_dtype = half_dtype
        self.allow_banned = allow_banned
        self.cache = WeightCastCache(half_dtype)
        self._to_half_sources = _CASTABLE - {half_dtype}

    def __torch_function__(
        self,
        func: Callable,
        types: Iterable[type],
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> Any:
        """Run one torch call, by its policy if it has one."""
        kwargs = kwargs or {}
        policy = POLICIES.effective.get(func)
        if policy is None:
            return self.run_unlisted(func, types, args, kwargs)
        if not casts_are_off():
            args, kwargs = self.cast(policy, func, args, kwargs)
        return func(*args, **kwargs)

    def run_unlisted(
        self, func: Callable, types: Iterable[type], args: Args, kwargs: Kwargs
    ) -> Any:
        """Run a function that has no policy; what is called in it may have one.

        Args:
            func: A torch function.
            types: Types of the arguments that may override the call.
            args: Its arguments given by place.
            kwargs: Its arguments given by name.
        """
        if func in _COMPOSITES:
            return self._inside(func, types, args, kwargs)
        if func in _DATA_ACCESS:
            self.cache.forget(args[0])
        return func(*args, **kwargs)

    def cast(
        self, policy: Policy, func: Callable, args: Args, kwargs: Kwargs
    ) -> tuple[Args, Kwargs]:
        """Cast the arguments of a call, unless the caller has said which dtype is to result.

        Args:
            policy: The policy.
            func: The function, for messages.
            args: Its arguments given by place.
            kwargs: Its arguments given by name.

        Returns:
            The arguments to call it with.

        Raises:
            NotImplementedError: The function is banned for these arguments.
        """
        if policy is Policy.KEEP or _is_explicit(args, kwargs):
            return args, kwargs
        return _RULES[policy](self, func, args, kwargs)

    def to_half(self, tensor: Tensor) -> Tensor:
        """Cast a float32 or half tensor to the half dtype, a parameter through the cache.

        Args:
            tensor: A tensor; one of another dtype is returned as it is.
        """
        if tensor.dtype not in self._to_half_sources:
            return tensor
        if isinstance(tensor, nn.Parameter) and not torch.compiler.is_compiling():
            return self.cache.cast(tensor)
        return tensor.to(self.half_dtype)

    def _half(self, func: Callable, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        # A call in the other half dtype alone is one that a mode within this one has cast.
        if torch.float32 in (dtypes := dtypes_of(args, kwargs)) or len(dtypes) > 1:
            return map_call(self.to_half, args, kwargs)
        return args, kwargs

    def _fp32(self, func: Callable, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        return cast_call(args, kwargs, HALF_DTYPES, torch.float32)

    def _promote(self, func: Callable, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        dtypes = dtypes_of(args, kwargs)
        if torch.float32 in dtypes and len(dtypes) > 1:
            return cast_call(args, kwargs, HALF_DTYPES, torch.float32)
        return args, kwargs

    def _match_first(self, func: Callable, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        dtype = args[0].dtype
        if dtype not in _CASTABLE:
            return args, kwargs
        return cast_call(args, kwargs, _CASTABLE, dtype)

    def _banned(self, func: Callable, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        half = HALF_DTYPES & dtypes_of(args, kwargs)
        if half and not self.allow_banned:
            raise NotImplementedError(
                f"{func.__name__} of {_names(half)} tensors; allowed at O1: float32, because its "
                "logarithms overflow in half. Best: let the model end without the sigmoid and use "
                "binary_cross_entropy_with_logits (nn.BCEWithLogitsLoss), which is safe. Or cast "
                "input and target with .float(), or pass allow_banned=True to amp.initialize, "
                "amp.init or AmpPrecision to run it in float32."
            )
        return cast_call(args, kwargs, HALF_DTYPES, torch.float32)

    def _banned_in_place(self, func: Callable, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        dtype = args[0].dtype
        if dtype in HALF_DTYPES:
            name = func.__name__
            raise NotImplementedError(
                f"{name} on a {_names([dtype])} tensor; allowed at O1: float32 tensors, because "
                "the function runs in float32 and its result cannot be written into a half tensor. "
                f"Use the out-of-place form, x = x.{name.rstrip('_')}(...), or x.float() first."
            )
        return args, kwargs

    def _inside(self, func: Callable, types: Iterable[type], args: Args, kwargs: Kwargs) -> Any:
        """Run the body of a Python function with the mode on, so that the calls in it have rules.

        Not so for tensor subclasses, which may take the call over.
        """
        body = None
        if are_plain(types):
            is_compiling = torch.compiler.is_compiling()
            body = _COMPOSITES[func] if is_compiling else without_override_check(func)
        if body is None:
            return func(*args, **kwargs)
        with self:
            return body(*args, **kwargs)


_RULES: dict[Policy, Callable[..., tuple[Args, Kwargs]]] = {
    Policy.HALF: FunctionCastMode._half,
    Policy.FP32: FunctionCastMode._fp32,
    Policy.PROMOTE: FunctionCastMode._promote,
    Policy.MATCH_FIRST: FunctionCastMode._match_first,
    Policy.BANNED: FunctionCastMode._banned,
    Policy.BANNED_IN_PLACE: FunctionCastMode._banned_in_place,
}

# Python functions with listed functions inside; backward is one, as activation checkpointing
# computes the forward again in it. A compiler takes the copies made here; without one, each call
# makes its own, which sees what is in the module's namespace by then.
_COMPOSITES: dict[Callable, Callable | None] = {
    function: without_override_check(function)
    for owner, name in (
        (F, "gaussian_nll_loss"),
        (F, "gumbel_softmax"),
        (F, "linear_cross_entropy"),
        (F, "lp_pool1d"),
        (F, "lp_pool2d"),
        (F, "lp_pool3d"),
        (F, "multi_head_attention_forward"),
        (F, "triplet_margin_with_distance_loss"),
        (Tensor, "backward"),
        (torch.autograd, "backward"),
        (torch.autograd, "grad"),
    )
    if isinstance(function := getattr(owner, name, None), FunctionType)
}

# Through ``.data`` a weight is written to without a trace.
_DATA: Any = Tensor.data
_DATA_ACCESS = frozenset([_DATA.__get__, _DATA.__set__])


def _is_explicit(args: Args, kwargs: Kwargs) -> bool:
    """Tell whether the caller has said which dtype the result is to have."""
    if kwargs and (kwargs.get("dtype") is not None or kwargs.get("out") is not None):
        return True
    return any(isinstance(value, torch.dtype) for value in args)


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))

"""A Python function whose tensor arguments are cast while the casts of O1 are on."""

import functools
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.utils._pytree import tree_map_only

from lightning_mp.amp.function_casts import active_half_dtype, active_mode
from lightning_mp.amp.op_lists import Policy
from lightning_mp.amp.opt_levels import HALF_DTYPES
from lightning_mp.amp.tree import map_tensors

__all__ = ["CastFunction"]

_CASTABLE = HALF_DTYPES | {torch.float32}


class CastFunction:
    """Call a function with its tensors cast, in nested data too; outside of casts as they are.

    What the function calls in turn is cast as usual. Tensors of other dtypes than float32, float16
    and bfloat16 are left alone.

    Args:
        function: The function.
        policy: ``Policy.HALF``, ``Policy.FP32`` or ``Policy.PROMOTE``.
    """

    def __init__(self, function: Callable[..., Any], policy: Policy) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.policy = policy

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Cast and call."""
        half_dtype = active_half_dtype()
        if half_dtype is not None:
            args, kwargs = self._cast((args, kwargs), half_dtype)
        return self.function(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<{self.policy.value} {self.function!r}>"

    def __reduce__(self) -> Any:
        """Pickle by name where the name leads here, as functions do."""
        name = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(getattr(self, "__module__", None) or "")
        for part in name.split("."):
            found = getattr(found, part, None)
        if getattr(found, "__func__", found) is self:
            return name
        return CastFunction, (self.function, self.policy)

    def _cast(self, call: Any, half_dtype: torch.dtype) -> Any:
        if self.policy is Policy.HALF:
            mode = active_mode()
            return _map(_to(half_dtype) if mode is None else mode.to_half, call)
        if self.policy is Policy.PROMOTE:
            dtypes: set[torch.dtype] = set()
            _map(lambda tensor: dtypes.add(tensor.dtype) or tensor, call)
            if torch.float32 not in dtypes or not dtypes & HALF_DTYPES:
                return call
        return _map(_to(torch.float32), call)


def _map(fn: Callable[[Tensor], Tensor], data: Any) -> Any:
    # A compiler cannot follow the first, which tells what has changed; the second walks builtin
    # containers.
    return tree_map_only(Tensor, fn, data) if is_compiling() else map_tensors(fn, data)


def _to(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.to(dtype) if tensor.dtype in _CASTABLE else tensor

"""Hooks that belong to one module: they know their module from a copy of it."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["OwnHook", "function_of"]


class OwnHook:
    """A bound hook that means one module: a copy of the module carries an inert hook.

    Args:
        module: The module, or None for an inert hook.
        function: Called with the module and the hook's other arguments, or None.
        is_compilable: Whether a compiler is to follow the function; if not, the hook does nothing
            in compiled code.
    """

    def __init__(
        self,
        module: nn.Module | None,
        function: Callable[..., Any] | None,
        *,
        is_compilable: bool = False,
    ) -> None:
        self._module = None if module is None else weakref.ref(module)
        self._function = function
        self._is_compilable = is_compilable

    def __call__(self, module: nn.Module, *args: Any) -> Any:
        """Call the function if the module is its own."""
        # A compiler cannot trace what most hooks do to the state of the process.
        if torch.compiler.is_compiling() and not self._is_compilable:
            return None
        if self._function is None or self._module is None or self._module() is not module:
            return None
        return self._function(module, *args)

    def __reduce__(self) -> tuple[type["OwnHook"], tuple[None, None]]:
        return (OwnHook, (None, None))


def function_of(method: Any) -> Any:
    """Return the function behind a bound method; anything else is returned as it is.

    Args:
        method: A method or a function.
    """
    return getattr(method, "__func__", method)

"""Hooks that belong to one module: they know their module from a copy of it."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["OwnHook", "function_of", "remove_casts"]


class OwnHook:
    """A bound hook that means one module: a copy of the module carries another, or an inert hook.

    The replicas that ``torch.nn.DataParallel`` makes of a module for one forward count as the
    module itself.

    Args:
        module: The module, or None for an inert hook.
        function: Called with the module and the hook's other arguments, or None.
        is_compilable: Whether a compiler is to follow the function; if not, the hook does nothing
            in compiled code.
        for_copies: Hook of a copy of the module, without a tie to this one; an inert one by
            default.
    """

    def __init__(
        self,
        module: nn.Module | None,
        function: Callable[..., Any] | None,
        *,
        is_compilable: bool = False,
        for_copies: Callable[..., Any] | None = None,
    ) -> None:
        self._module = None if module is None else weakref.ref(module)
        self._function = function
        self._is_compilable = is_compilable
        self._for_copies = for_copies

    @property
    def owner(self) -> Any:
        """The object whose method the function is; it has installed the hook and can remove it."""
        return getattr(self._function, "__self__", None)

    def __call__(self, module: nn.Module, *args: Any) -> Any:
        """Call the function if the module is its own."""
        # A compiler cannot trace what most hooks do to the state of the process.
        if torch.compiler.is_compiling() and not self._is_compilable:
            return None
        if self._function is None or self._module is None:
            return None
        if self._module() is not module and not getattr(module, "_is_replica", False):
            return None
        return self._function(module, *args)

    def __reduce__(self) -> Any:
        """Give a copy of the module its own hook."""
        if self._for_copies is not None:
            return (_itself, (self._for_copies,))
        return (OwnHook, (None, None))


def remove_casts(module: nn.Module) -> None:
    """Remove the casts that an earlier set-up of the same module has put around its forward.

    Args:
        module: The module.
    """
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    for hook in hooks:
        if isinstance(hook, OwnHook) and hook.owner is not None:
            hook.owner.remove()


def function_of(method: Any) -> Any:
    """Return the function behind a bound method; anything else is returned as it is.

    Args:
        method: A method or a function.
    """
    return getattr(method, "__func__", method)


def _itself(hook: Callable[..., Any]) -> Callable[..., Any]:
    return hook

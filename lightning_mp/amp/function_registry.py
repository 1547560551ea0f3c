"""Users' own words on how a function is to be cast at O1: decorators, and registration by name.

Both may come before or after set-up and hold wherever casts are on. For a torch function the word
goes into the table that the implementations read; a Python function is replaced where it was found,
because the user names that very place, until it is unregistered. A region of native casts that is
on already does not learn of another torch function.
"""

import difflib
import inspect
import sys
from collections.abc import Callable
from types import ClassMethodDescriptorType, FunctionType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import get_testing_overrides

from lightning_mp.amp.cast_function import CastFunction
from lightning_mp.amp.op_lists import Policy
from lightning_mp.amp.policy_table import POLICIES

__all__ = [
    "float_function",
    "half_function",
    "promote_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "unregister",
    "unregister_all",
]

_F = TypeVar("_F", bound=Callable[..., Any])


def half_function(function: _F) -> _F:
    """Decorate a function to get its float32 and half tensors in half while casts are on.

    Args:
        function: A function or method. Tensors are found in all its arguments, in nested lists,
            tuples, dicts and dataclasses too.

    Returns:
        The decorated function.

    Example:
        >>> from lightning_mp.amp.function_casts import FunctionCasts
        >>> @half_function
        ... def fused(x, *, options):
        ...     return x.dtype
        >>> fused(torch.ones(3), options={})
        torch.float32
        >>> with FunctionCasts(torch.bfloat16).context():
        ...     fused(torch.ones(3), options={})
        torch.bfloat16
    """
    return _decorate(function, Policy.HALF)


def float_function(function: _F) -> _F:
    """Decorate a function to get its half tensors in float32 while casts are on.

    Args:
        function: As for :func:`half_function`.

    Returns:
        The decorated function.
    """
    return _decorate(function, Policy.FP32)


def promote_function(function: _F) -> _F:
    """Decorate a function to get half tensors in float32 if it gets float32 ones besides.

    Args:
        function: As for :func:`half_function`.

    Returns:
        The decorated function.
    """
    return _decorate(function, Policy.PROMOTE)


def register_half_function(module: Any, name: str) -> None:
    """Have a function run in half while casts are on.

    Args:
        module: The module or class that has the function: torch, one of its namespaces, or any
            other.
        name: Its name there.

    Raises:
        ValueError: There is no such name.
        TypeError: It is not a function.
        RuntimeError: Somebody else has replaced it since it was registered.

    Example:
        >>> register_half_function(torch, "cumsum")
        >>> unregister(torch, "cumsum")
    """
    _register(module, name, Policy.HALF)


def register_float_function(module: Any, name: str) -> None:
    """Have a function run in float32 while casts are on.

    Args:
        module: As for :func:`register_half_function`.
        name: As for :func:`register_half_function`.

    Raises:
        ValueError: There is no such name.
        TypeError: It is not a function.
        RuntimeError: Somebody else has replaced it since it was registered.
    """
    _register(module, name, Policy.FP32)


def register_promote_function(module: Any, name: str) -> None:
    """Have a function run in float32 while casts are on if it gets both half and float32.

    Args:
        module: As for :func:`register_half_function`.
        name: As for :func:`register_half_function`.

    Raises:
        ValueError: There is no such name.
        TypeError: It is not a function.
        RuntimeError: Somebody else has replaced it since it was registered.
    """
    _register(module, name, Policy.PROMOTE)


def unregister(module: Any, name: str) -> None:
    """Take a registration back.

    Args:
        module: The module or class it was registered with.
        name: The name it was registered with.

    Raises:
        ValueError: It was not registered.
        RuntimeError: Somebody else has replaced the function since.
    """
    registration = _REGISTERED.get((id(module), name))
    if registration is None:
        raise ValueError(
            f"{_label(module, name)} = not registered; allowed: "
            f"{sorted(entry.label for entry in _REGISTERED.values())}"
        )
    registration.undo()
    del _REGISTERED[id(module), name]
    # One function may be registered under several names.
    for entry in _REGISTERED.values():
        for function in entry.torch_functions:
            POLICIES.set_user_policy(function, entry.policy)
    _forget_compiled_code()


def unregister_all() -> None:
    """Take all registrations back, the last first.

    Raises:
        RuntimeError: Somebody else has replaced a registered function since; it and those
            registered before it stay.
    """
    for entry in reversed(list(_REGISTERED.values())):
        unregister(entry.owner, entry.name)


class _Registration(NamedTuple):
    owner: Any  # held, so that its id is not given to another object
    name: str
    policy: Policy
    torch_functions: tuple[Callable, ...] = ()
    old: Any = None
    new: Any = None
    is_inherited: bool = False

    @property
    def label(self) -> str:
        return _label(self.owner, self.name)

    def check(self) -> None:
        """Refuse to go on if the function is no longer the one put in."""
        if self.torch_functions or vars(self.owner).get(self.name) is self.new:
            return
        raise RuntimeError(
            f"{self.label} = {getattr(self.owner, self.name, 'gone')!r}; allowed: what was put "
            "there when it was registered. Undo the other replacement of this function first"
        )

    def undo(self) -> None:
        self.check()
        for function in self.torch_functions:
            POLICIES.drop_user_policy(function)
        if self.is_inherited:
            delattr(self.owner, self.name)
        elif not self.torch_functions:
            setattr(self.owner, self.name, self.old)


# The registry: what was registered where, in order.
_REGISTERED: dict[tuple[int, str], _Registration] = {}


def _register(module: Any, name: str, policy: Policy) -> None:
    if not hasattr(module, name):
        close = difflib.get_close_matches(name, dir(module))
        raise ValueError(
            f"name = {name!r}; {_label(module)} has no such name"
            + (f"; did you mean {' or '.join(map(repr, close))}?" if close else "")
        )
    function = getattr(module, name)
    if not callable(function) or isinstance(function, type):
        raise TypeError(
            f"{_label(module, name)} = {function!r}; allowed: functions; "
            "register the function that computes"
        )
    earlier = _REGISTERED.get((id(module), name))
    if earlier is not None:
        earlier.check()
        unregister(module, name)
    functions = _torch_functions(getattr(module, name))
    for item in functions:
        POLICIES.set_user_policy(item, policy)
    _REGISTERED[id(module), name] = (
        _Registration(module, name, policy, functions)
        if functions
        else _replace(module, name, policy)
    )
    _forget_compiled_code()


def _torch_functions(function: Any) -> tuple[Callable, ...]:
    """Return what a function mode is handed when a function is called; nothing if it is not."""
    if isinstance(function, torch._ops.OpOverloadPacket):
        overloads = (getattr(function, name) for name in function.overloads())
        return (function, *overloads)
    if isinstance(function, torch._ops.OpOverload):
        return (function,)
    if function in _HANDED_AS:
        return (function, _HANDED_AS[function])
    is_seen = function in get_testing_overrides() or function in POLICIES.effective
    return (function,) if is_seen else ()


def _handed_as() -> dict[Callable, Callable]:
    """Map what torch hands to modes under the name of another function to that function."""
    found: dict[Callable, Callable] = {F.sigmoid: Tensor.sigmoid, F.tanh: Tensor.tanh}
    operators = {
        **{name: name for name in ("add", "sub", "mul", "div", "matmul")},
        **{name: name for name in ("ge", "gt", "le", "lt", "ne")},
        "truediv": "div",
        "mod": "remainder",
        "floordiv": "floor_divide",
    }
    for operator, method in operators.items():
        for kind, suffix in (("", ""), ("r", ""), ("i", "_")):
            special = getattr(Tensor, f"__{kind}{operator}__", None)
            if special is not None and hasattr(Tensor, method + suffix):
                found[special] = getattr(Tensor, method + suffix)
    return found


_HANDED_AS = _handed_as()


def _replace(owner: Any, name: str, policy: Policy) -> _Registration:
    old = inspect.getattr_static(owner, name)
    new = _decorate(old, policy)
    is_inherited = name not in vars(owner)
    setattr(owner, name, new)
    return _Registration(owner, name, policy, (), old, new, is_inherited)


def _decorate(function: Any, policy: Policy) -> Any:
    """Wrap a function, or the one in a static or class method; a wrapped one is not nested."""
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(_decorate(function.__func__, policy))
    if isinstance(function, ClassMethodDescriptorType):  # written in C, as apply is in torch 2.14
        return classmethod(CastFunction(function, policy))
    if isinstance(function, CastFunction):
        function = function.function
    return CastFunction(function, policy)


def _forget_compiled_code() -> None:
    # Guards do not see the registry.
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def _label(owner: Any, name: str = "") -> str:
    path = [getattr(owner, "__module__", ""), getattr(owner, "__qualname__", "")]
    if not isinstance(owner, type | FunctionType):
        path = ["", getattr(owner, "__name__", repr(owner))]
    return ".".join(part for part in (*path, name) if part)

"""What function modes do with the call of a torch function: look at dtypes, cast, go inside."""

from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "Args",
    "Kwargs",
    "are_plain",
    "cast_call",
    "dtypes_of",
    "map_call",
    "without_override_check",
]

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

_PLAIN = frozenset([Tensor, nn.Parameter])
_OVERRIDE_CHECKS = frozenset(
    ["has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"]
)


def are_plain(types: Iterable[type]) -> bool:
    """Tell whether no tensor subclass is involved, which may take a call over.

    Args:
        types: What a mode is given as the types of the call.
    """
    return all(kind in _PLAIN for kind in types)


def dtypes_of(args: Args, kwargs: Kwargs) -> set[torch.dtype]:
    """Return the dtypes of the tensors among the arguments, those in lists and tuples too.

    Args:
        args: Arguments given by place.
        kwargs: Arguments given by name.
    """
    found: set[torch.dtype] = set()
    _collect_dtypes(args, found)
    if kwargs:
        _collect_dtypes(kwargs.values(), found)
    return found


def cast_call(
    args: Args, kwargs: Kwargs, sources: frozenset[torch.dtype], target: torch.dtype
) -> tuple[Args, Kwargs]:
    """Cast the tensors of some dtypes among the arguments, all but a result tensor ``out``.

    Args:
        args: Arguments given by place.
        kwargs: Arguments given by name.
        sources: The dtypes that are cast.
        target: The dtype they are cast to.

    Returns:
        The new ``args`` and ``kwargs``.
    """
    return map_call(
        lambda tensor: tensor.to(target) if tensor.dtype in sources else tensor, args, kwargs
    )


def map_call(fn: Callable[[Tensor], Tensor], args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Apply a function to the tensors among the arguments, all but a result tensor ``out``.

    Args:
        fn: Takes and returns a tensor.
        args: Arguments given by place.
        kwargs: Arguments given by name.

    Returns:
        The new ``args`` and ``kwargs``.
    """
    return _map(fn, args), {
        name: value if name == "out" else _map(fn, value) for name, value in kwargs.items()
    }


def without_override_check(func: Callable) -> Callable | None:
    """Return a Python function with its check for overrides answered no.

    A mode that is on while such a function runs would be handed the function again, without end.

    Args:
        func: A function that a mode was handed.

    Returns:
        A copy of the function, or None if it makes no such check by a global name.
    """
    if not isinstance(func, FunctionType):
        return None
    checks = _OVERRIDE_CHECKS.intersection(func.__code__.co_names, func.__globals__)
    if not checks:
        return None
    scope = {**func.__globals__, **dict.fromkeys(checks, lambda *_: False)}
    body = FunctionType(func.__code__, scope, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body


def _collect_dtypes(values: Iterable[Any], found: set[torch.dtype]) -> None:
    for value in values:
        if isinstance(value, Tensor):
            found.add(value.dtype)
        elif isinstance(value, (list, tuple)):
            _collect_dtypes(value, found)


def _map(fn: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, Tensor):
        return fn(value)
    if type(value) in (list, tuple):
        return type(value)([_map(fn, item) for item in value])
    if isinstance(value, (list, tuple)):
        return _map_subclass(fn, value)
    return value


def _map_subclass(fn: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return a plain list or tuple, as a namedtuple takes other arguments, if anything changed."""
    items = [_map(fn, item) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    return items if isinstance(value, list) else tuple(items)

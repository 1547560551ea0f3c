"""Casts of the tensors in nested data, keeping the class of every container.

Apex turned dict subclasses into dicts and failed on namedtuples; here a container comes back as
its own class, and as the same object where nothing in it changed.
"""

import copy
import dataclasses
from collections import UserList, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, cast

import torch
from torch import Tensor, nn

__all__ = ["cast_floating", "map_tensors"]


def cast_floating(data: Any, dtype: torch.dtype) -> Any:
    """Cast every floating tensor in nested data; integers, bools and complex numbers stay.

    Args:
        data: Any nesting that :func:`map_tensors` walks.
        dtype: A floating dtype.

    Returns:
        The data with its floating tensors in ``dtype``. A tensor that fits already is not copied,
        and a container in which nothing changed is returned itself.

    Example:
        >>> batch = {"x": torch.ones(3), "label": torch.arange(3)}
        >>> {name: value.dtype for name, value in cast_floating(batch, torch.float16).items()}
        {'x': torch.float16, 'label': torch.int64}
    """
    return map_tensors(lambda tensor: _cast(tensor, dtype), data)


def map_tensors(fn: Callable[[Tensor], Any], data: Any) -> Any:
    """Apply a function to every tensor in nested data.

    Walked are mappings (their values), tuples, namedtuples, lists and deques with their
    subclasses, dataclass instances (their fields), and the attributes of objects whose class has
    a ``to`` method. Such a method is not called: it may convert integers as well, or work in
    place. Modules, strings, arrays, ranges, iterators and all else are returned as they are.

    A changed container is a shallow copy with the new values put in, so that its class, its other
    attributes and its constructor's arguments (a ``default_factory``, a ``maxlen``, fields with
    ``init=False``) are kept. The input is never modified. Cycles are not supported.

    Args:
        fn: Takes a tensor, returns its replacement, or the tensor itself if nothing is to change.
        data: The nested data.

    Returns:
        The data with the replacements, the same object if there were none.
    """
    if isinstance(data, Tensor):
        return fn(data)
    if isinstance(data, Mapping):
        return _with_items(data, _changed(fn, data.items()))
    if isinstance(data, tuple):
        return _with_elements(data, _changed(fn, enumerate(data)))
    if isinstance(data, (list, deque, UserList)):
        return _with_items(data, _changed(fn, enumerate(data)))
    values = ((name, getattr(data, name)) for name in _attributes(data) if hasattr(data, name))
    return _with_attributes(data, _changed(fn, values))


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _changed(fn: Callable[[Tensor], Any], items: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return the new values under their keys, of those items only in which something changed."""
    mapped = ((key, value, map_tensors(fn, value)) for key, value in items)
    return {key: new for key, old, new in mapped if new is not old}


def _with_items(data: Any, changed: dict[Any, Any]) -> Any:
    if not changed:
        return data
    if isinstance(data, Mapping) and not isinstance(data, MutableMapping):
        immutable = cast(Any, type(data))
        return immutable({**data, **changed})
    new = copy.copy(data)
    for key, value in changed.items():
        new[key] = value
    return new


def _with_elements(data: tuple[Any, ...], changed: dict[int, Any]) -> tuple[Any, ...]:
    if not changed:
        return data
    elements = [changed.get(index, element) for index, element in enumerate(data)]
    if hasattr(
        type(data), "n_sequence_fields"
    ):  # torch.return_types: a C type with its own __new__
        return type(data)(elements)
    # tuple's own __new__ serves every subclass: the subclass's may want other arguments, as that of
    # PackedSequence does.
    new = tuple.__new__(type(data), elements)
    if hasattr(data, "__dict__"):
        new.__dict__.update(data.__dict__)
    return new


def _with_attributes(data: Any, changed: dict[str, Any]) -> Any:
    if not changed:
        return data
    new = copy.copy(data)
    for name, value in changed.items():
        object.__setattr__(new, name, value)  # frozen dataclasses refuse setattr
    return new


def _attributes(data: Any) -> Iterator[str]:
    """Yield the names of the attributes to walk."""
    if isinstance(data, (type, nn.Module)):
        return
    if dataclasses.is_dataclass(data):
        yield from (field.name for field in dataclasses.fields(data))
    elif callable(getattr(type(data), "to", None)):  # the class's: a mock's instance has everything
        yield from tuple(getattr(data, "__dict__", ()))
        for cls in type(data).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            names = (slots,) if isinstance(slots, str) else slots
            yield from (name for name in names if not name.startswith("__"))

"""Kernels in Python that stand in where a device has none: made of operators that it has."""

from collections.abc import Callable
from typing import TypeVar

import torch

from lightning_mp.fl.library import fl_operators

__all__ = [
    "PRECISIONS",
    "register_generic_kernel",
    "remove_generic_kernels",
    "set_generic_precision",
]

Function = TypeVar("Function", bound=Callable[..., object])

PRECISIONS = ("default", "accurate", "fast")
_NAMESPACE = "lightning_mp_fl_generic"
# Keeps the operators that hold the kernels, by operator and precision.
_libraries: dict[tuple[str, str], torch.library.Library] = {}


def register_generic_kernel(
    name: str, *, precision: str = "default"
) -> Callable[[Function], Function]:
    """Register a function as the generic kernel of an operator.

    It is called on devices that have no kernel of their own for the operator, or not for the dtype,
    with tensors of fl. It must not call the operator that it stands in for.

    Args:
        name: Name of the operator with its overload, such as ``"aten::tril"`` or
            ``"aten::add.Tensor"``.
        precision: ``"accurate"`` or ``"fast"`` for a variant that ``set_generic_precision``
            chooses, ``"default"`` for the one that is called where there is no such variant.

    Returns:
        A decorator, which returns the function.

    Raises:
        ValueError: If there is no such operator or precision.
    """
    _check_precision(precision)
    schema = _schema_of(name)

    def decorate(function: Function) -> Function:
        remove_generic_kernel(name, precision)
        kernel = f"{schema.name.replace('::', '__')}__{schema.overload_name or 'none'}__{precision}"
        signature = str(schema).partition("(")[2]
        library = torch.library.Library(_NAMESPACE, "FRAGMENT")
        library.define(f"{kernel}({signature}")
        library.impl(kernel, function, "CompositeExplicitAutograd")
        fl_operators().add_generic_kernel(name, precision, f"{_NAMESPACE}::{kernel}")
        _libraries[name, precision] = library
        return function

    return decorate


def remove_generic_kernel(name: str, precision: str) -> None:
    """Take one kernel back; does nothing if it is not there.

    Args:
        name: Name of the operator.
        precision: Precision that it was registered for.
    """
    library = _libraries.pop((name, precision), None)
    if library is not None:
        fl_operators().remove_generic_kernel(name, precision)
        library._destroy()


def remove_generic_kernels(name: str) -> None:
    """Take back all kernels that were registered for an operator.

    Args:
        name: Name of the operator.
    """
    for precision in PRECISIONS:
        remove_generic_kernel(name, precision)


def set_generic_precision(precision: str) -> None:
    """Choose the variant of generic kernels that is called.

    Args:
        precision: ``"default"``, ``"accurate"`` or ``"fast"``.

    Raises:
        ValueError: If it is another one.
    """
    _check_precision(precision)
    fl_operators().choose_precision(precision)


def _check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise ValueError(
            f"precision = {precision!r}; {', '.join(PRECISIONS)} are allowed; pass one of them"
        )


def _schema_of(name: str) -> torch.FunctionSchema:
    base, _, overload = name.partition(".")
    try:
        return torch._C._get_schema(base, overload)
    except RuntimeError as error:
        raise ValueError(
            f"operator = {name!r}; operators with their overload are allowed, such as 'aten::tril' "
            "or 'aten::add.Tensor'; torch.ops lists them"
        ) from error

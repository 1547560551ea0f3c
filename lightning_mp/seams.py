"""Own patches of Lightning's classes: put in all at once, taken out all at once.

A constructor is wrapped by replacing ``__init__``; the type hint of ``precision``, from which
jsonargparse (and so LightningCLI) takes the allowed values, is widened where it stands.
"""

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Union

from lightning_mp.lightning_api import LIGHTNING_VERSION
from lightning_mp.opt_out import NO_PATCH_VARIABLE
from lightning_mp.precision_input import PrecisionLevel

__all__ = [
    "Seams",
    "WrappedInit",
    "require_arguments",
    "resolving",
]

_SUPPORTED_LIGHTNING = ">=2.4, <2.7"


class WrappedInit(NamedTuple):
    """Name a constructor to wrap.

    Attributes:
        cls: The class.
        wrapper: What stands in place of its ``__init__``.
    """

    cls: type
    wrapper: Callable[..., None]


class Seams(ABC):
    """Own the patches of one entry point and give the very original objects back."""

    def __init__(self) -> None:
        self._wrapped: list[tuple[WrappedInit, Callable[..., None]]] = []
        self._original_hints: list[tuple[dict[str, Any], Any]] = []

    @property
    @abstractmethod
    def entry_point(self) -> type:
        """The class that users call, whose hint of ``precision`` is widened."""

    @abstractmethod
    def wrapped_inits(self) -> Sequence[WrappedInit]:
        """Find the constructors to wrap, and make their wrappers.

        Raises:
            RuntimeError: If Lightning is not built as expected.
        """

    @property
    def is_installed(self) -> bool:
        """Whether the patches are in."""
        return bool(self._wrapped)

    @property
    def patched_objects(self) -> tuple[str, ...]:
        """Dotted names of what is patched now."""
        if not self.is_installed:
            return ()
        inits = [f"{_dotted_name(patch.cls)}.__init__" for patch, _ in self._wrapped]
        return (*inits, f"{_dotted_name(self.entry_point)}.__init__ (annotation of precision)")

    def install(self) -> None:
        """Put the patches in; does nothing when they are in.

        Raises:
            RuntimeError: If Lightning is not built as expected. Nothing is patched then.
        """
        if self.is_installed:
            return
        patches = self.wrapped_inits()
        hints = _find_precision_hints(self.entry_point)
        # Everything that can fail is done; from here on it is all or nothing.
        self._wrapped = [(patch, _init_of(patch.cls)) for patch in patches]
        self._original_hints = [(hint, hint["precision"]) for hint in hints]
        for patch in patches:
            _set_init(patch.cls, patch.wrapper)
        for hint, original in self._original_hints:
            hint["precision"] = Union[original, PrecisionLevel]  # noqa: UP007 - built at run time

    def require_undoable(self) -> None:
        """Refuse to go on if somebody else patched one of the constructors on top.

        Raises:
            RuntimeError: If so.
        """
        for patch, _ in self._wrapped:
            present = _init_of(patch.cls)
            if present is not patch.wrapper:
                raise RuntimeError(
                    f"{_dotted_name(patch.cls)}.__init__ = {present!r}; expected the one that "
                    "install() put there; undo the later patch first"
                )

    def uninstall(self) -> None:
        """Put the original objects back; does nothing when the patches are out.

        Raises:
            RuntimeError: If somebody else patched a constructor on top. Nothing is undone then.
        """
        self.require_undoable()
        for patch, original in self._wrapped:
            _set_init(patch.cls, original)
        for hint, original in self._original_hints:
            hint["precision"] = original
        self._wrapped, self._original_hints = [], []


def require_arguments(cls: type | None, name: str, arguments: Sequence[str]) -> type:
    """Check that a class of Lightning is there and that its constructor takes what we hand on.

    Args:
        cls: The class, or ``None`` if it was not found.
        name: Where it was looked for.
        arguments: Names that its constructor must take.

    Returns:
        The class.

    Raises:
        RuntimeError: If it is missing or takes something else.
    """
    if cls is None:
        raise _moved(f"{name} is missing")
    parameters = inspect.signature(_init_of(cls)).parameters
    missing = [argument for argument in arguments if argument not in parameters]
    if missing:
        raise _moved(f"{_dotted_name(cls)}.__init__ has no {' and no '.join(missing)}")
    return cls


def resolving(
    original: Callable[..., None], arguments: Sequence[str], resolve: Callable[..., tuple[Any, Any]]
) -> Callable[..., None]:
    """Wrap a connector's constructor so that it gets a plugin in place of one of our strings.

    Args:
        original: The constructor.
        arguments: Names of its arguments that ``resolve`` takes, in that order.
        resolve: Returns ``precision`` and ``plugins`` for the constructor.

    Returns:
        The constructor's wrapper.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        given = (bound.arguments.get(name) for name in arguments)
        precision, plugins = resolve(*given)
        bound.arguments.update(precision=precision, plugins=plugins)
        original(*bound.args, **bound.kwargs)

    return init


def _find_precision_hints(entry_point: type) -> list[dict[str, Any]]:
    """Find each annotation dict along the ``__wrapped__`` chain once; wrappers may share it."""
    hints: dict[int, dict[str, Any]] = {}
    function: Any = _init_of(entry_point)
    while function is not None:
        annotations = getattr(function, "__annotations__", {})
        # A string would be evaluated in Lightning's namespace, where our names do not exist.
        if not isinstance(annotations.get("precision", ""), str):
            hints[id(annotations)] = annotations
        function = getattr(function, "__wrapped__", None)
    if not hints:
        raise _moved(f"{_dotted_name(entry_point)}.__init__ has no type hint for precision")
    return list(hints.values())


def _dotted_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _init_of(cls: Any) -> Callable[..., None]:
    return cls.__init__


def _set_init(cls: Any, init: Callable[..., None]) -> None:
    cls.__init__ = init


def _moved(what: str) -> RuntimeError:
    return RuntimeError(
        f"Lightning = {LIGHTNING_VERSION}: {what}; supported: {_SUPPORTED_LIGHTNING}; install a "
        f"supported version, or set {NO_PATCH_VARIABLE}=1 and use lightning_mp.Trainer or "
        "plugins=[AmpPrecision(...)], and plugins=[AmpFabricPrecision(...)] with Fabric"
    )

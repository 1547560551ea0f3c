"""Teach the stock Lightning Trainer the precisions O0, O2, O2-bf16, O3 and O3-bf16.

Two seams, both undone by ``uninstall()``:

* run time: ``_AcceleratorConnector.__init__`` turns the string into an ``AmpPrecision`` plugin;
* type hint: the annotation of ``precision`` on ``Trainer.__init__``, from which jsonargparse (and
  so LightningCLI) takes the allowed values.

``lightning_mp.Trainer`` and ``plugins=[AmpPrecision(...)]`` need neither.
"""

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any, Union

from lightning_mp.lightning_api import LIGHTNING_VERSION, Trainer, trainer_module
from lightning_mp.precision_input import PrecisionLevel, resolve_precision

__all__ = [
    "NO_PATCH_VARIABLE",
    "StockTrainerSeams",
    "install",
    "is_installed",
    "is_opted_out",
    "patched_objects",
    "uninstall",
]

NO_PATCH_VARIABLE = "LIGHTNING_MP_NO_PATCH"

_SUPPORTED_LIGHTNING = ">=2.4, <2.7"
# What the connector must take; in the order of resolve_precision.
_ARGUMENTS = ("precision", "plugins", "strategy")
_FALSE_WORDS = frozenset({"", "0", "false", "no", "off"})


class StockTrainerSeams:
    """Own the patches of the stock Trainer and give the very original objects back.

    Example:
        >>> StockTrainerSeams().is_installed
        False
    """

    def __init__(self) -> None:
        self._connector_class: Any = None
        self._original_init: Callable[..., None] | None = None
        self._wrapped_init: Callable[..., None] | None = None
        self._original_hints: list[tuple[dict[str, Any], Any]] = []

    @property
    def is_installed(self) -> bool:
        """Whether the patches are in."""
        return self._connector_class is not None

    @property
    def patched_objects(self) -> tuple[str, ...]:
        """Dotted names of what is patched now."""
        if self._connector_class is None:
            return ()
        return (
            f"{_dotted_name(self._connector_class)}.__init__",
            f"{_dotted_name(Trainer)}.__init__ (annotation of precision)",
        )

    def install(self) -> None:
        """Patch the stock Trainer; does nothing when the patches are in.

        Raises:
            RuntimeError: If Lightning is not built as expected. Nothing is patched then.
        """
        if self.is_installed:
            return
        connector_class = _find_connector_class()
        hints = _find_precision_hints()
        # Everything that can fail is done; from here on it is all or nothing.
        self._original_init = connector_class.__init__
        self._wrapped_init = _wrap_connector_init(connector_class.__init__)
        self._original_hints = [(hint, hint["precision"]) for hint in hints]
        self._connector_class = connector_class
        connector_class.__init__ = self._wrapped_init
        for hint, original in self._original_hints:
            hint["precision"] = Union[original, PrecisionLevel]  # noqa: UP007 - built at run time

    def uninstall(self) -> None:
        """Put the original objects back; does nothing when the patches are out.

        Raises:
            RuntimeError: If somebody else patched the connector on top. Nothing is undone then.
        """
        if self._connector_class is None:
            return
        if self._connector_class.__init__ is not self._wrapped_init:
            raise RuntimeError(
                f"{_dotted_name(self._connector_class)}.__init__ = "
                f"{self._connector_class.__init__!r}; expected the one that install() put there; "
                "undo the later patch first"
            )
        self._connector_class.__init__ = self._original_init
        for hint, original in self._original_hints:
            hint["precision"] = original
        self.__init__()


def install() -> None:
    """Teach the stock Trainer the strings O0, O2, O2-bf16, O3 and O3-bf16.

    ``import lightning_mp`` calls it unless ``LIGHTNING_MP_NO_PATCH`` is set. A second call does
    nothing.

    Raises:
        RuntimeError: If this version of Lightning is not built as expected.

    Example:
        >>> import lightning_mp
        >>> lightning_mp.install()
    """
    _SEAMS.install()


def uninstall() -> None:
    """Take the strings back from the stock Trainer; the original objects are restored.

    Raises:
        RuntimeError: If somebody else patched the same object later.

    Example:
        >>> import lightning_mp
        >>> lightning_mp.uninstall()
        >>> lightning_mp.install()
    """
    _SEAMS.uninstall()


def is_installed() -> bool:
    """Say whether the stock Trainer knows our strings.

    Returns:
        ``True`` between ``install()`` and ``uninstall()``.
    """
    return _SEAMS.is_installed


def patched_objects() -> tuple[str, ...]:
    """List what is patched, for ``lightning-mp info``.

    Returns:
        Dotted names; empty when nothing is patched.
    """
    return _SEAMS.patched_objects


def is_opted_out() -> bool:
    """Say whether the environment variable ``LIGHTNING_MP_NO_PATCH`` forbids patches at import.

    Returns:
        ``False`` when it is unset, empty, ``0``, ``false``, ``no`` or ``off``; ``True`` otherwise.
    """
    return os.environ.get(NO_PATCH_VARIABLE, "").strip().lower() not in _FALSE_WORDS


def _wrap_connector_init(original: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        given = (bound.arguments.get(name) for name in _ARGUMENTS)
        precision, plugins = resolve_precision(*given)
        bound.arguments.update(precision=precision, plugins=plugins)
        original(*bound.args, **bound.kwargs)

    return init


def _find_connector_class() -> type:
    connector_class = getattr(trainer_module, "_AcceleratorConnector", None)
    if connector_class is None:
        raise _moved(f"{trainer_module.__name__}._AcceleratorConnector is missing")
    parameters = inspect.signature(connector_class.__init__).parameters
    missing = [name for name in _ARGUMENTS if name not in parameters]
    if missing:
        raise _moved(f"{_dotted_name(connector_class)}.__init__ has no {' and no '.join(missing)}")
    return connector_class


def _find_precision_hints() -> list[dict[str, Any]]:
    """Find each annotation dict along the ``__wrapped__`` chain once; wrappers may share it."""
    hints: dict[int, dict[str, Any]] = {}
    function: Any = Trainer.__init__
    while function is not None:
        annotations = getattr(function, "__annotations__", {})
        # A string would be evaluated in Lightning's namespace, where our names do not exist.
        if not isinstance(annotations.get("precision", ""), str):
            hints[id(annotations)] = annotations
        function = getattr(function, "__wrapped__", None)
    if not hints:
        raise _moved(f"{_dotted_name(Trainer)}.__init__ has no type hint for precision")
    return list(hints.values())


def _moved(what: str) -> RuntimeError:
    return RuntimeError(
        f"Lightning = {LIGHTNING_VERSION}: {what}; supported: {_SUPPORTED_LIGHTNING}; install "
        f"a supported version, or set {NO_PATCH_VARIABLE}=1 and use lightning_mp.Trainer or "
        "plugins=[AmpPrecision(...)]"
    )


def _dotted_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


_SEAMS = StockTrainerSeams()

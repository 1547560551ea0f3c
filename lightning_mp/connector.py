"""Teach the stock Trainer and the stock Fabric the opt levels, from O0 to O3-bf16.

At run time the connectors turn the string into a precision plugin; the widened type hint of
``precision`` makes jsonargparse (and so LightningCLI) accept it. ``uninstall()`` undoes all of it.

``lightning_mp.Trainer`` and ``plugins=[AmpPrecision(...)]`` need no patch.
"""

from collections.abc import Sequence

from lightning_mp.fabric_connector import StockFabricSeams
from lightning_mp.lightning_api import Trainer, trainer_module
from lightning_mp.opt_out import NO_PATCH_VARIABLE, is_opted_out
from lightning_mp.precision_input import resolve_precision
from lightning_mp.seams import Seams, WrappedInit, require_arguments, resolving
from lightning_mp.torch_fl_alias import ALIAS, install_alias, is_alias_installed, uninstall_alias

__all__ = [
    "NO_PATCH_VARIABLE",
    "StockTrainerSeams",
    "install",
    "is_installed",
    "is_opted_out",
    "patched_objects",
    "uninstall",
]

# What the connector must take; in the order of resolve_precision.
_ARGUMENTS = ("precision", "plugins", "strategy")


class StockTrainerSeams(Seams):
    """Own the patches of the stock Trainer and give the very original objects back.

    Example:
        >>> StockTrainerSeams().is_installed
        False
    """

    @property
    def entry_point(self) -> type:
        """The stock Trainer."""
        return Trainer

    def wrapped_inits(self) -> Sequence[WrappedInit]:
        """Wrap the connector, which every Trainer makes for itself.

        Raises:
            RuntimeError: If Lightning is not built as expected.
        """
        name = f"{trainer_module.__name__}._AcceleratorConnector"
        found = getattr(trainer_module, "_AcceleratorConnector", None)
        connector = require_arguments(found, name, _ARGUMENTS)
        return [
            WrappedInit(connector, resolving(connector.__init__, _ARGUMENTS, resolve_precision))
        ]


def install() -> None:
    """Teach the stock Trainer and the stock Fabric the strings O0, O1, O2, O3 and those in bf16.

    It also makes ``import torch_fl`` an alias of ``lightning_mp.fl``. ``import lightning_mp``
    calls it unless ``LIGHTNING_MP_NO_PATCH`` is set. A second call does nothing.

    Raises:
        RuntimeError: If this version of Lightning is not built as expected. Nothing is patched
            then.

    Example:
        >>> import lightning_mp
        >>> lightning_mp.install()
    """
    was_installed = _SEAMS[0].is_installed
    try:
        for seams in _SEAMS:
            seams.install()
    except RuntimeError:
        if not was_installed:
            _SEAMS[0].uninstall()
        raise
    install_alias()


def uninstall() -> None:
    """Take the strings and the alias back; the original objects are restored.

    Raises:
        RuntimeError: If somebody else patched the same object later. Nothing is undone then.

    Example:
        >>> import lightning_mp
        >>> lightning_mp.uninstall()
        >>> lightning_mp.install()
    """
    for seams in _SEAMS:
        seams.require_undoable()
    for seams in _SEAMS:
        seams.uninstall()
    uninstall_alias()


def is_installed() -> bool:
    """Say whether the stock Trainer and the stock Fabric know our strings.

    Returns:
        ``True`` between ``install()`` and ``uninstall()``.
    """
    return all(seams.is_installed for seams in _SEAMS)


def patched_objects() -> tuple[str, ...]:
    """List what is patched, for ``lightning-mp info``.

    Returns:
        Dotted names; empty when nothing is patched.
    """
    alias = (f"sys.meta_path (import {ALIAS})",) if is_alias_installed() else ()
    return (*(name for seams in _SEAMS for name in seams.patched_objects), *alias)


_SEAMS: tuple[Seams, ...] = (StockTrainerSeams(), StockFabricSeams())

"""Tell the two distributions of Lightning apart.

``lightning`` brings ``pytorch_lightning`` along: the same code under another name, whose classes
are others to ``isinstance``. This suite works with one of them per process. A callback handed to a
Trainer of the other is taken silently; a plugin is refused with a message that does not say why.
"""

import sys

from lightning_mp.lightning_package import PACKAGE, PACKAGE_VARIABLE

__all__ = ["other_package_note", "require_lightning_trainer"]

_HOW_TO_IMPORT = {
    "lightning": "`import lightning as L` and `L.Trainer`",
    "pytorch_lightning": "`import pytorch_lightning as pl` and `pl.Trainer`",
}
_MODULES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


def require_lightning_trainer(trainer: object, asked_by: str = "lightning_mp") -> None:
    """Refuse a Trainer of the Lightning package that is not in use.

    Callbacks call it first in ``setup``, the earliest hook that sees the Trainer.

    Args:
        trainer: The Trainer that runs the caller.
        asked_by: Name of the caller, for the message.

    Raises:
        TypeError: If the class of ``trainer`` comes from the other package.

    Example:
        >>> import lightning as L
        >>> trainer = L.Trainer(logger=False, enable_checkpointing=False)
        >>> require_lightning_trainer(trainer, asked_by="MyCallback")
    """
    used, other = _used_and_other()
    for cls in type(trainer).__mro__:
        if cls.__module__.partition(".")[0] == other:
            raise TypeError(
                f"trainer of {asked_by} = {cls.__module__}.{cls.__qualname__}; "
                f"allowed: {_MODULES[used]}.Trainer; {_remedy(used, other)}"
            )


def other_package_note() -> str:
    """Name the right import, for the ``repr`` of a plugin.

    The connector of the other package prints a plugin that it refuses, so the note reaches the
    user whichever package was imported first, and nothing has to be patched. It is empty while
    the other package is not imported.

    Returns:
        The empty string, or a note to append.
    """
    used, other = _used_and_other()
    if sys.modules.get(_MODULES[other]) is None:
        return ""
    return f" (a plugin of {_MODULES[used]}, not of {_MODULES[other]}: {_remedy(used, other)})"


def _used_and_other() -> tuple[str, str]:
    if PACKAGE == "pytorch_lightning":
        return "pytorch_lightning", "lightning"
    return "lightning", "pytorch_lightning"


def _remedy(used: str, other: str) -> str:
    return (
        f"use {_HOW_TO_IMPORT[used]}, or set {PACKAGE_VARIABLE}={other} before lightning_mp is "
        "imported"
    )

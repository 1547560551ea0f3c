"""Tell the two distributions of Lightning apart.

``lightning`` brings ``pytorch_lightning`` along: the same code under another name, whose classes
are others to ``isinstance``. A callback handed to the wrong Trainer is taken silently; a plugin is
refused with a message that does not say why.
"""

import sys

__all__ = ["require_lightning_trainer", "standalone_note"]

_STANDALONE = "pytorch_lightning"
_REMEDY = "use `import lightning as L` and `L.Trainer`"


def require_lightning_trainer(trainer: object, asked_by: str = "lightning_mp") -> None:
    """Refuse a Trainer of the standalone package ``pytorch_lightning``.

    Callbacks call it first in ``setup``, the earliest hook that sees the Trainer.

    Args:
        trainer: The Trainer that runs the caller.
        asked_by: Name of the caller, for the message.

    Raises:
        TypeError: If the class of ``trainer`` comes from ``pytorch_lightning``.

    Example:
        >>> import lightning as L
        >>> trainer = L.Trainer(logger=False, enable_checkpointing=False)
        >>> require_lightning_trainer(trainer, asked_by="MyCallback")
    """
    for cls in type(trainer).__mro__:
        if cls.__module__.partition(".")[0] == _STANDALONE:
            raise TypeError(
                f"trainer of {asked_by} = {cls.__module__}.{cls.__qualname__}; "
                f"allowed: lightning.pytorch.Trainer; {_REMEDY}"
            )


def standalone_note() -> str:
    """Name the right import, for the ``repr`` of a plugin.

    The connector of ``pytorch_lightning`` prints a plugin that it refuses, so the note reaches the
    user whichever package was imported first, and nothing has to be patched. It is empty while
    ``pytorch_lightning`` is not imported.

    Returns:
        The empty string, or a note to append.
    """
    if _STANDALONE not in sys.modules:
        return ""
    return f" (a plugin of lightning.pytorch, not of {_STANDALONE}: {_REMEDY})"

"""Choose between the two distributions of Lightning without importing either.

``lightning`` (``import lightning as L``) and ``pytorch_lightning`` (``import pytorch_lightning as
pl``) hold the same code under two names, whose classes are others to ``isinstance``. A process
that uses this suite works with one of them, chosen when the suite is imported.
"""

import os
import sys
from importlib.util import find_spec

__all__ = ["PACKAGE", "PACKAGE_VARIABLE", "find_package"]

PACKAGE_VARIABLE = "LIGHTNING_MP_PACKAGE"

# By preference, each with the module whose import shows that the package is in use: the parts of
# `lightning` that are not its Trainer say nothing.
_PACKAGES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


def find_package() -> str | None:
    """Find the package of Lightning to work with.

    The environment variable ``LIGHTNING_MP_PACKAGE`` decides if it is set. Otherwise it is
    ``lightning``, unless that is not installed, or ``pytorch_lightning`` was imported already and
    ``lightning.pytorch`` was not.

    Returns:
        ``"lightning"``, ``"pytorch_lightning"``, or ``None`` if neither is installed.

    Raises:
        ValueError: If ``LIGHTNING_MP_PACKAGE`` is neither name.
        RuntimeError: If it names the one that is not installed.

    Example:
        >>> find_package() in ("lightning", "pytorch_lightning", None)
        True
    """
    installed = [name for name in _PACKAGES if _is_installed(name)]
    asked = os.environ.get(PACKAGE_VARIABLE, "").strip()
    if asked:
        return _checked(asked, installed)
    imported = [name for name in installed if sys.modules.get(_PACKAGES[name]) is not None]
    return next(iter([*imported, *installed]), None)


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:
        # A module put into sys.modules by hand may have no spec.
        return True


def _checked(asked: str, installed: list[str]) -> str | None:
    if asked not in _PACKAGES:
        raise ValueError(
            f"{PACKAGE_VARIABLE} = {asked!r}; allowed are {', '.join(_PACKAGES)}; set one of them, "
            "or unset the variable"
        )
    if not installed:
        return None
    if asked not in installed:
        raise RuntimeError(
            f"{PACKAGE_VARIABLE} = {asked!r}, which is not installed; allowed here: "
            f"{installed[0]}; unset the variable, or pip install {asked}"
        )
    return asked


PACKAGE = find_package()

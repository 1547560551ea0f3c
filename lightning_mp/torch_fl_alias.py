"""``import torch_fl`` as another name of ``lightning_mp.fl``, where no package has that name.

A top-level module shipped under that name would overwrite the files of a real ``torch_fl``, and
would be there for programs that never asked. So ``import lightning_mp`` puts a finder at the end
of ``sys.meta_path`` instead: Python asks it only for what nothing else can import, a real
``torch_fl`` that is installed later comes first again, and ``uninstall_alias`` takes it out.

``torch_fl`` and packages in it are modules of their own, which pass every look-up on to
``lightning_mp.fl`` and have no path, so that Python never loads a file a second time under the
other name; a plain module ``torch_fl.x`` is the very module ``lightning_mp.fl.x``.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from typing_extensions import override

__all__ = ["ALIAS", "install_alias", "is_alias_installed", "uninstall_alias"]

ALIAS = "torch_fl"
_TARGET = "lightning_mp.fl"


class _AliasFinder(MetaPathFinder, Loader):
    """Find and load ``torch_fl`` and what is below it."""

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != ALIAS and not fullname.startswith(f"{ALIAS}."):
            return None
        # Finders that were added later come behind this one, and may have the real package.
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :] if self in sys.meta_path else []
        for finder in behind:
            find = getattr(finder, "find_spec", None)
            spec = None if find is None else find(fullname, path, target)
            if spec is not None:
                return spec
        real = importlib.util.find_spec(_real_name(fullname))
        if real is None:
            return None
        is_package = real.submodule_search_locations is not None
        return ModuleSpec(fullname, self, is_package=is_package)

    @override
    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == ALIAS:
            _activate()
        real = importlib.import_module(_real_name(module.__name__))
        if not hasattr(real, "__path__"):
            # What stands here after loading is what the import gives.
            sys.modules[module.__name__] = real
            return
        module.__doc__ = real.__doc__
        module.__dict__["__all__"] = list(getattr(real, "__all__", ()))
        module.__dict__["__getattr__"] = lambda name: getattr(real, name)
        module.__dict__["__dir__"] = lambda: dir(real)


def _activate() -> None:
    try:
        importlib.import_module(f"{_TARGET}.activation").activate()
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f"{ALIAS} = an alias of {_TARGET}, which cannot be used here ({error}); needed: fl as "
            "part of lightning_mp; see lightning-mp info, or install the package of that name",
            name=ALIAS,
        ) from error


def install_alias() -> None:
    """Make ``import torch_fl`` work where no package has that name; a second call does nothing.

    Example:
        >>> install_alias()
        >>> is_alias_installed()
        True
    """
    if not is_alias_installed():
        sys.meta_path.append(_FINDER)


def uninstall_alias() -> None:
    """Take the alias back, with the modules that were imported by it; fl stays as it is."""
    if not is_alias_installed():
        return
    sys.meta_path.remove(_FINDER)
    alias = sys.modules.get(ALIAS)
    spec = getattr(alias, "__spec__", None)
    if spec is not None and spec.loader is _FINDER:
        for name in [x for x in sys.modules if x == ALIAS or x.startswith(f"{ALIAS}.")]:
            del sys.modules[name]


def is_alias_installed() -> bool:
    """Say whether the finder of the alias is in ``sys.meta_path``."""
    return _FINDER in sys.meta_path


def _real_name(alias: str) -> str:
    return _TARGET + alias.removeprefix(ALIAS)


_FINDER = _AliasFinder()

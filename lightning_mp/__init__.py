"""Mixed precision, fused kernels, heterogeneous devices and batch-size control for Lightning.

Importing this package teaches the stock Trainer and Fabric the opt levels (``precision="O2"``),
unless ``LIGHTNING_MP_NO_PATCH=1`` is set. ``lightning_mp.amp``, ``lightning_mp.fl`` and
``lightning_mp.optim`` work where Lightning is not installed. Everything else works with
``lightning`` or with ``pytorch_lightning``: the one imported before, else ``lightning`` if it is
installed, or the one that ``LIGHTNING_MP_PACKAGE`` names.

The same import makes ``import torch_fl`` an alias of ``lightning_mp.fl`` where no package has that
name; it activates no device.
"""

from typing import TYPE_CHECKING, NoReturn

from lightning_mp import amp, fl, optim
from lightning_mp.__about__ import __version__
from lightning_mp.lightning_package import PACKAGE

__all__ = [
    "AmpFabricPrecision",
    "AmpPrecision",
    "Trainer",
    "__version__",
    "amp",
    "callbacks",
    "fl",
    "install",
    "optim",
    "uninstall",
]

if TYPE_CHECKING or PACKAGE is not None:
    from lightning_mp import callbacks
    from lightning_mp.connector import install, is_opted_out, uninstall
    from lightning_mp.fabric_precision import AmpFabricPrecision
    from lightning_mp.precision import AmpPrecision
    from lightning_mp.trainer import Trainer

    if not is_opted_out():
        install()
else:
    from lightning_mp.opt_out import is_opted_out
    from lightning_mp.torch_fl_alias import install_alias

    if not is_opted_out():
        install_alias()

    def __getattr__(name: str) -> NoReturn:
        if name in __all__:
            raise ModuleNotFoundError(
                f"lightning_mp.{name} needs the package lightning, which is not installed (nor "
                "is pytorch_lightning); lightning_mp.amp and lightning_mp.optim work without; pip "
                "install lightning",
                name="lightning",
            )
        raise AttributeError(f"module 'lightning_mp' has no attribute {name!r}")

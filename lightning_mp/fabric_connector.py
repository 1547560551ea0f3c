"""Teach the stock Fabric the opt levels, and show its plugin what Fabric does not.

Fabric hands a precision plugin the models but neither the optimizers nor the wrapped models. Both
go through the constructor of a wrapper of its own, where the plugin is told of them.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from lightning_mp.fabric_precision import AmpFabricPrecision
from lightning_mp.lightning_api import Fabric, fabric_module, fabric_wrappers
from lightning_mp.precision_input import resolve_fabric_precision
from lightning_mp.seams import Seams, WrappedInit, require_arguments, resolving

__all__ = ["StockFabricSeams"]

# What the connector must take; in the order of resolve_fabric_precision.
_ARGUMENTS = ("precision", "plugins", "strategy")


class StockFabricSeams(Seams):
    """Own the patches of the stock Fabric and give the very original objects back.

    Example:
        >>> StockFabricSeams().is_installed
        False
    """

    @property
    def entry_point(self) -> type:
        """The stock Fabric."""
        return Fabric

    def wrapped_inits(self) -> Sequence[WrappedInit]:
        """Wrap the connector and the constructors of the model's and the optimizer's wrappers.

        Raises:
            RuntimeError: If Lightning is not built as expected.
        """
        connector = _find(fabric_module, "_Connector", _ARGUMENTS)
        model = _find(fabric_wrappers, "_FabricModule", ("forward_module", "strategy"))
        optimizer = _find(fabric_wrappers, "_FabricOptimizer", ("optimizer", "strategy"))
        resolve = resolve_fabric_precision
        return [
            WrappedInit(connector, resolving(_init(connector), _ARGUMENTS, resolve)),
            WrappedInit(model, _telling(_init(model), "forward_module", "watch")),
            WrappedInit(optimizer, _telling(_init(optimizer), "optimizer", "attach")),
        ]


def _find(module: Any, name: str, arguments: Sequence[str]) -> type:
    found = getattr(module, name, None)
    return require_arguments(found, f"{module.__name__}.{name}", arguments)


def _init(cls: Any) -> Callable[..., None]:
    return cls.__init__


def _telling(original: Callable[..., None], argument: str, method: str) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> None:
        arguments = signature.bind(*args, **kwargs).arguments
        precision = arguments["strategy"].precision
        if isinstance(precision, AmpFabricPrecision):
            getattr(precision, method)(arguments[argument])
        original(*args, **kwargs)

    return init

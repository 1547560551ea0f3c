"""A Trainer that knows the opt levels by itself, without patches of Lightning."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from lightning_mp.lightning_api import PLUGIN_INPUT, PRECISION_INPUT, defaults_from_env_vars
from lightning_mp.lightning_api import Trainer as StockTrainer
from lightning_mp.precision import AmpPrecision
from lightning_mp.precision_input import PrecisionLevel, resolve_precision

__all__ = ["Trainer"]


_Init = TypeVar("_Init", bound=Callable[..., None])


def _with_stock_signature(init: _Init) -> _Init:
    """Show every argument of the stock Trainer instead of ``**kwargs``.

    Lightning's defaults from the environment, jsonargparse and ``help()`` read the signature;
    without it ``PL_TRAINER_DEVICES`` would go unseen.
    """
    stock_init = StockTrainer.__init__
    signature = inspect.signature(stock_init)
    precision = inspect.signature(init).parameters["precision"]
    parameters = {**signature.parameters, "precision": precision}
    init.__dict__["__signature__"] = signature.replace(parameters=list(parameters.values()))
    init.__doc__ = stock_init.__doc__
    return defaults_from_env_vars(init)


class Trainer(StockTrainer):
    """Lightning's Trainer with the precisions O0 to O3 and O1-bf16 to O3-bf16.

    It needs no patch of Lightning, so it also works with ``LIGHTNING_MP_NO_PATCH=1``, and in
    ``LightningCLI(trainer_class=lightning_mp.Trainer)``.

    Args:
        precision: An opt level (letter O; a plain level is fp16), its full form
            ``AmpPrecision(...)``, or any precision of Lightning.
        plugins: Plugins as for the stock Trainer; they may hold ``AmpPrecision(...)``, too.
        kwargs: Every other argument of the stock Trainer.

    Raises:
        ValueError: If ``precision`` looks like an opt level but is none, if ``plugins`` holds a
            precision plugin as well, or if the strategy takes only precision plugins of its own.

    Example:
        >>> import lightning_mp
        >>> trainer = lightning_mp.Trainer(precision="O2", logger=False, enable_checkpointing=False)
        >>> trainer.precision_plugin.opt_level
        'O2'
    """

    @_with_stock_signature
    def __init__(
        self,
        *,
        precision: PRECISION_INPUT | PrecisionLevel | AmpPrecision | None = None,
        plugins: PLUGIN_INPUT | list[PLUGIN_INPUT] | None = None,
        **kwargs: Any,
    ) -> None:
        for_stock = resolve_precision(precision, plugins, kwargs.get("strategy"))
        super().__init__(precision=for_stock[0], plugins=for_stock[1], **kwargs)

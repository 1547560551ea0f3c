"""``lightning-mp fit|validate|test|predict``: LightningCLI with this suite registered."""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from typing_extensions import override

from lightning_mp.cli.hints import with_allowed_arguments
from lightning_mp.lightning_package import PACKAGE
from lightning_mp.trainer import Trainer

if TYPE_CHECKING or PACKAGE != "pytorch_lightning":
    from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
else:
    from pytorch_lightning.cli import LightningArgumentParser, LightningCLI

__all__ = ["run_trainer"]

# What Lightning says of every run and nobody can act upon.
_NOISE = (
    r"Precision O\d\S* is not supported by the model summary",
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
)


def run_trainer(args: Sequence[str] | None = None) -> LightningCLI:
    """Run one loop of the Trainer as a YAML file and the arguments say.

    The model and the data are named by ``class_path``. ``optimizer`` and ``lr_scheduler`` may be
    given in the file in place of the model's own.

    Args:
        args: Sub-command and its arguments. ``None`` means ``sys.argv[1:]``.

    Returns:
        The finished LightningCLI, with its ``trainer``, ``model`` and ``datamodule``.

    Raises:
        SystemExit: With 2 and a message on an unknown key, a misspelt argument or a wrong value.
    """
    with warnings.catch_warnings():
        for message in _NOISE:
            warnings.filterwarnings("ignore", message=message)
        return _run(args)


class _SuiteParser(LightningArgumentParser):
    @override
    def error(self, message: str, *args: Any, **kwargs: Any) -> NoReturn:
        super().error(with_allowed_arguments(message), *args, **kwargs)


class _SuiteCLI(LightningCLI):
    @override
    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        parser = super().init_parser(**kwargs)
        # Not a local function: ddp_spawn pickles the parser along with the saved config.
        parser.__class__ = _SuiteParser
        return parser


def _run(args: Sequence[str] | None) -> LightningCLI:
    return _SuiteCLI(
        trainer_class=Trainer,
        # The seed that Lightning takes anyway when none is given, without its warning.
        seed_everything_default=0,
        # Without a logger the file lands in the working folder, run after run: overwriting must be
        # allowed, and the name must not be one that users give their own files.
        save_config_kwargs={"overwrite": True, "config_filename": "resolved_config.yaml"},
        parser_kwargs={"prog": "lightning-mp"},
        args=None if args is None else list(args),
    )

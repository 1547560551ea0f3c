"""Choose the sub-command of ``lightning-mp`` and run it."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from lightning_mp.__about__ import __version__
from lightning_mp.cli.devices import format_devices
from lightning_mp.cli.info import collect_info, format_info
from lightning_mp.cli.starter import copy_starter
from lightning_mp.cli.train import run_trainer
from lightning_mp.fl.discovery import discover

__all__ = ["main"]

_TRAINER_COMMANDS = {
    "fit": "train the model of a YAML file",
    "validate": "run the validation loop of a YAML file",
    "test": "run the test loop of a YAML file",
    "predict": "run the prediction loop of a YAML file",
}


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line.

    Modules of the current folder can be named in YAML files, as with ``python -m``.

    Args:
        args: Arguments after the name of the program. ``None`` means ``sys.argv[1:]``.

    Raises:
        SystemExit: With 2 and a message on wrong arguments; with 0 after ``--help``, ``--version``.

    Example:
        >>> main(["info"])  # doctest: +SKIP
    """
    _make_current_folder_importable()
    given = sys.argv[1:] if args is None else list(args)
    if _is_for_trainer(given):
        # None lets LightningCLI read sys.argv itself, the form it expects from a command line.
        run_trainer(None if args is None else given)
        return
    parser = _build_parser()
    options = parser.parse_args(given)
    if options.command == "info":
        print(format_info(collect_info(), as_json=options.json))
        return
    try:
        if options.command == "devices":
            print(format_devices(discover(), has_log=options.debug, as_json=options.json))
        else:
            print(copy_starter(options.directory, force=options.force))
    except (OSError, ValueError) as error:
        parser.error(str(error))


def _make_current_folder_importable() -> None:
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)


def _is_for_trainer(args: list[str]) -> bool:
    # LightningCLI also takes a config before its sub-command.
    return bool(args) and (
        args[0] in _TRAINER_COMMANDS or args[0].partition("=")[0] in ("-c", "--config")
    )


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightning-mp",
        description="Train with opt levels on PyTorch Lightning.",
        epilog="lightning-mp COMMAND --help shows the options of a command.",
    )
    parser.add_argument("--version", action="version", version=f"lightning-mp {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in _TRAINER_COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    info = commands.add_parser("info", help="show versions, devices, kernels and patches")
    info.add_argument("--json", action="store_true", help="print the same as JSON")
    devices = commands.add_parser("devices", help="show the devices of fl, and what is not used")
    devices.add_argument("--json", action="store_true", help="print the same as JSON")
    devices.add_argument("--debug", action="store_true", help="print the steps of the search too")
    init = commands.add_parser("init", help="copy a starter config and module into a folder")
    init.add_argument(
        "--directory", type=Path, default=Path(), help="where to put them (default: here)"
    )
    init.add_argument("--force", action="store_true", help="overwrite files that exist")
    return parser

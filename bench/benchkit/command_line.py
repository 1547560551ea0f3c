"""What the command lines of the benchmarks share: options, and what they refuse before they run."""

import argparse
import sys
from pathlib import Path

from lightning_mp.kernels.library import load_kernels

__all__ = [
    "add_report_options",
    "make_parser",
    "positive_count",
    "publish",
    "require_kernels",
    "require_linux",
    "require_output_folder",
]


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Make a parser that keeps the lines of its description.

    Args:
        description: What the benchmark does.
    """
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_report_options(parser: argparse.ArgumentParser, smoke: str) -> None:
    """Add ``--output`` and ``--smoke``.

    Args:
        parser: Takes the options.
        smoke: What a short run makes small.
    """
    parser.add_argument(
        "--output", type=Path, metavar="FILE.md", help="file to write the report to as well"
    )
    parser.add_argument("--smoke", action="store_true", help=smoke)


def positive_count(text: str) -> int:
    """Read a whole number above 0, as the type of an option.

    Args:
        text: What was given.

    Raises:
        argparse.ArgumentTypeError: It is something else.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; give a whole number above 0")
    return int(text)


def require_output_folder(parser: argparse.ArgumentParser, output: Path | None) -> None:
    """End with an error where the report could not be written.

    Args:
        parser: Says it.
        output: File of the report, if there is to be one.
    """
    if output is not None and not output.parent.is_dir():
        parser.error(
            f"--output = {output}; allowed: a file in a folder that exists; make {output.parent} "
            "first"
        )


def require_linux(parser: argparse.ArgumentParser) -> None:
    """End with an error on a system whose memory is neither set up nor measured alike.

    Args:
        parser: Says it.
    """
    if sys.platform != "linux":
        parser.error(
            f"platform = {sys.platform}; allowed: linux, for its allocator settings and process "
            "memory; run it there"
        )


def require_kernels(parser: argparse.ArgumentParser) -> str:
    """End with an error where kernels would be torch operations.

    Args:
        parser: Says it.

    Returns:
        The instruction set in use.
    """
    library = load_kernels()
    if not library.is_loaded:
        parser.error(f"kernels = reference (torch): {library.reason}; only compiled ones are timed")
    return library.isa


def publish(report: str, output: Path | None) -> None:
    """Print a report and write it to a file.

    Args:
        report: Markdown, with a final newline.
        output: The file, if there is to be one.
    """
    print(report, end="")
    if output is not None:
        output.write_text(report)

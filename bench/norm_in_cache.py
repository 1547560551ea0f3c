"""Would the norm be cheaper if each gradient were summed while it is still in a cache?

``python bench/norm_in_cache.py`` prints a Markdown report; ``bench/README.md`` says how it
measures.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from benchkit.environment import TIMING_ALLOCATOR, describe_environment, thread_variables
from benchkit.norm_report import format_norm_report
from benchkit.norm_taps import GRADIENT_DTYPES, MODELS
from benchkit.worker import run_worker
from lightning_mp.kernels.library import load_kernels

__all__ = ["main"]

_NUM_THREADS = 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the report and write it to ``--output``.

    Args:
        arguments: Command-line arguments; those of the process by default.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parse(given)
    command = shlex.join(["python", "bench/norm_in_cache.py", *given])
    load = os.getloadavg()[0]
    results = {
        (model, f"{gradient_dtype} gradients"): run_worker(
            "measure_norm_taps",
            {**TIMING_ALLOCATOR, **thread_variables(_NUM_THREADS)},
            model=model,
            gradient_dtype=gradient_dtype,
            num_rounds=2 if options.smoke else options.rounds,
            num_threads=_NUM_THREADS,
            is_smoke=options.smoke,
        )
        for gradient_dtype in options.gradient_dtypes
        for model in options.models
    }
    environment = [
        *describe_environment(command, _NUM_THREADS),
        ("Load average", f"{load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end"),
    ]
    report = format_norm_report(environment, results)
    print(report, end="")
    if options.output is not None:
        options.output.write_text(report)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--models", nargs="+", choices=MODELS, default=MODELS, help="default: all")
    add(
        "--gradient-dtypes",
        nargs="+",
        choices=GRADIENT_DTYPES,
        default=GRADIENT_DTYPES,
        help="default: all",
    )
    add("--rounds", type=_count, default=15, help="rounds that interleave all forms (default: 15)")
    add("--output", type=Path, metavar="FILE.md", help="file to write the report to as well")
    add("--smoke", action="store_true", help="tiny models and few rounds, to try the benchmark")
    options = parser.parse_args(arguments)
    if options.output is not None and not options.output.parent.is_dir():
        parser.error(
            f"--output = {options.output}; allowed: a file in a folder that exists; make "
            f"{options.output.parent} first"
        )
    library = load_kernels()
    if not library.is_loaded:
        parser.error(f"kernels = reference (torch): {library.reason}; only compiled ones are timed")
    return options


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; give a whole number above 0")
    return int(text)


if __name__ == "__main__":
    main()

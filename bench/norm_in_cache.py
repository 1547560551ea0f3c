"""Would the norm be cheaper if each gradient were summed while it is still in a cache?

``python bench/norm_in_cache.py`` prints a Markdown report; ``bench/README.md`` says how it
measures.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence

from benchkit.command_line import (
    add_report_options,
    make_parser,
    positive_count,
    publish,
    require_kernels,
    require_linux,
    require_output_folder,
)
from benchkit.environment import (
    TIMING_ALLOCATOR,
    describe_environment,
    describe_load,
    thread_variables,
)
from benchkit.norm_report import format_norm_report
from benchkit.norm_taps import GRADIENT_DTYPES, MODELS
from benchkit.worker import run_worker

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
    load_at_start = os.getloadavg()[0]
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
        describe_load(load_at_start),
    ]
    report = format_norm_report(environment, results)
    publish(report, options.output)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--models", nargs="+", choices=MODELS, default=MODELS, help="default: all")
    add(
        "--gradient-dtypes",
        nargs="+",
        choices=GRADIENT_DTYPES,
        default=GRADIENT_DTYPES,
        help="default: all",
    )
    add(
        "--rounds",
        type=positive_count,
        default=15,
        help="rounds that interleave all forms (default: 15)",
    )
    add_report_options(parser, "tiny models and few rounds, to try the benchmark")
    options = parser.parse_args(arguments)
    require_linux(parser)
    require_output_folder(parser, options.output)
    require_kernels(parser)
    return options


if __name__ == "__main__":
    main()

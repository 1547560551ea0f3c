"""Time and memory of the fused step against other ways to do the same, on lists of parameters.

``python bench/fused_step.py`` prints a Markdown report; ``bench/README.md`` says how it measures.
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
    MEMORY_ALLOCATOR,
    TIMING_ALLOCATOR,
    describe_environment,
    describe_load,
    thread_variables,
)
from benchkit.step_lists import STEP_LISTS
from benchkit.step_report import format_step_report
from benchkit.step_result import StepResult, StepRun
from benchkit.worker import run_worker

__all__ = ["main"]

_HALF_DTYPES = ("bfloat16", "float16")
_SMOKE_ROUNDS = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the report and write it to ``--output``.

    Args:
        arguments: Command-line arguments; those of the process by default.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parse(given)
    command = shlex.join(["python", "bench/fused_step.py", *given])
    load_at_start = os.getloadavg()[0]
    results = [
        _measure(list_name, half_dtype, options)
        for list_name in options.lists
        for half_dtype in options.half_dtypes
    ]
    threads = " and ".join(str(count) for count in options.threads)
    facts = [
        (name, threads if name == "Threads" else value)
        for name, value in describe_environment(command, options.threads[0])
    ]
    report = format_step_report("The fused step", [*facts, describe_load(load_at_start)], results)
    publish(report, options.output)


def _measure(list_name: str, half_dtype: str, options: argparse.Namespace) -> StepResult:
    shared = {"list_name": list_name, "half_dtype": half_dtype, "is_smoke": options.smoke}
    runs = []
    for num_threads in options.threads:
        measured = run_worker(
            "measure_step_times",
            {**TIMING_ALLOCATOR, **thread_variables(num_threads)},
            num_threads=num_threads,
            num_rounds=_SMOKE_ROUNDS if options.smoke else options.rounds,
            **shared,
        )
        # Several threads spin while they wait, so their processor time says little.
        runs.append(StepRun(clock="cpu" if num_threads == 1 else "wall", **measured))
    memory = run_worker(
        "measure_step_memory",
        {**MEMORY_ALLOCATOR, **thread_variables(1)},
        num_threads=1,
        **shared,
    )
    return StepResult(list_name, half_dtype, runs, memory)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _make_parser()
    options = parser.parse_args(arguments)
    require_linux(parser)
    require_output_folder(parser, options.output)
    require_kernels(parser)
    return options


def _make_parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    add = parser.add_argument
    cores = os.cpu_count() or 1
    default_threads = sorted({1, cores})
    add("--lists", nargs="+", choices=STEP_LISTS, default=STEP_LISTS, help="default: all")
    add("--half-dtypes", nargs="+", choices=_HALF_DTYPES, default=_HALF_DTYPES, help="default: all")
    add(
        "--rounds",
        type=positive_count,
        default=11,
        help="rounds that interleave everything (default: 11)",
    )
    add(
        "--threads",
        nargs="+",
        type=positive_count,
        default=default_threads,
        help="threads of each run; 1 is judged by processor time, more by wall time (default: "
        f"{' '.join(map(str, default_threads))})",
    )
    add_report_options(parser, "tiny lists and few rounds, to try the benchmark")
    return parser


if __name__ == "__main__":
    main()

"""Time and memory of the fused step against other ways to do the same, on lists of parameters.

``python bench/fused_step.py`` prints a Markdown report; ``bench/README.md`` says how it measures.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from benchkit.environment import (
    MEMORY_ALLOCATOR,
    TIMING_ALLOCATOR,
    describe_environment,
    thread_variables,
)
from benchkit.step_lists import STEP_LISTS
from benchkit.step_report import format_step_report
from benchkit.step_result import StepResult, StepRun
from benchkit.worker import run_worker
from lightning_mp.kernels.library import load_kernels

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
    load = f"{load_at_start:.1f} at the start, {os.getloadavg()[0]:.1f} at the end"
    report = format_step_report("The fused step", [*facts, ("Load average", load)], results)
    print(report, end="")
    if options.output is not None:
        options.output.write_text(report)


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
    if sys.platform != "linux":
        parser.error(
            f"platform = {sys.platform}; allowed: linux, for its allocator settings and process "
            "memory; run it there"
        )
    if options.output is not None and not options.output.parent.is_dir():
        parser.error(
            f"--output = {options.output}; allowed: a file in a folder that exists; make "
            f"{options.output.parent} first"
        )
    library = load_kernels()
    if not library.is_loaded:
        parser.error(f"kernels = reference (torch): {library.reason}; only compiled ones are timed")
    return options


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    cores = os.cpu_count() or 1
    default_threads = sorted({1, cores})
    add("--lists", nargs="+", choices=STEP_LISTS, default=STEP_LISTS, help="default: all")
    add("--half-dtypes", nargs="+", choices=_HALF_DTYPES, default=_HALF_DTYPES, help="default: all")
    add("--rounds", type=_count, default=11, help="rounds that interleave everything (default: 11)")
    add(
        "--threads",
        nargs="+",
        type=_count,
        default=default_threads,
        help="threads of each run; 1 is judged by processor time, more by wall time (default: "
        f"{' '.join(map(str, default_threads))})",
    )
    add("--output", type=Path, metavar="FILE.md", help="file to write the report to as well")
    add("--smoke", action="store_true", help="tiny lists and few rounds, to try the benchmark")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; give a whole number above 0")
    return int(text)


if __name__ == "__main__":
    main()

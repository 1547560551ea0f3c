"""Step time, memory and loss of each precision on the stock Trainer, against stock precisions.

``python bench/precision.py`` prints a Markdown report; ``bench/README.md`` says how it measures.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from benchkit.column import DEFAULT_COLUMNS, PRECISIONS, SMOKE_COLUMNS, parse_column
from benchkit.command_line import (
    add_report_options,
    make_parser,
    positive_count,
    publish,
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
from benchkit.report import WorkloadResult, format_report
from benchkit.worker import run_worker
from benchkit.workload import WORKLOADS, make_workload

__all__ = ["main"]

# Of a full run, and of a smoke run.
_DEFAULTS: dict[str, tuple[Any, Any]] = {
    "workloads": (("resnet18", "transformer"), ("transformer",)),
    "columns": (DEFAULT_COLUMNS, SMOKE_COLUMNS),
    "steps": (6, 2),
    "rounds": (5, 2),
    "quality_steps": (60, 4),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the report and write it to ``--output``.

    Args:
        arguments: Command-line arguments; those of the process by default.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parse(given)
    environment = describe_environment(
        shlex.join(["python", "bench/precision.py", *given]), options.threads
    )
    load_at_start = os.getloadavg()[0]
    results = [_measure(name, options) for name in options.workloads]
    report = format_report([*environment, describe_load(load_at_start)], results)
    publish(report, options.output)


def _measure(workload: str, options: argparse.Namespace) -> WorkloadResult:
    shared = {
        "workload": workload,
        "num_threads": options.threads,
        "max_cpu_seconds": options.max_cpu_seconds,
        "is_smoke": options.smoke,
    }
    threads = thread_variables(options.threads)
    times = run_worker(
        "measure_times",
        {**TIMING_ALLOCATOR, **threads},
        columns=list(options.columns),
        num_rounds=options.rounds,
        num_steps=options.steps,
        **shared,
    )
    qualities = {
        column: run_worker(
            "measure_quality",
            {**MEMORY_ALLOCATOR, **threads},
            column=column,
            num_steps=options.quality_steps,
            **shared,
        )
        for column in options.columns
    }
    return WorkloadResult(
        title=make_workload(workload, is_smoke=options.smoke).title,
        times=times,
        qualities=qualities,
        num_quality_steps=options.quality_steps,
        # Several threads spin while they wait, so their processor time says little.
        clock="cpu" if options.threads == 1 else "wall",
    )


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _make_parser()
    options = parser.parse_args(arguments)
    require_linux(parser)
    require_output_folder(parser, options.output)
    for name, (full, smoke) in _DEFAULTS.items():
        if getattr(options, name) is None:
            setattr(options, name, smoke if options.smoke else full)
    return options


def _make_parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--workloads", nargs="+", choices=WORKLOADS, help=_help("workloads", "what is trained"))
    add(
        "--columns",
        nargs="+",
        type=_column,
        metavar="NAME",
        help=_help("columns", f"{', '.join(PRECISIONS)}, each with or without '/fused'"),
    )
    add(
        "--steps",
        type=positive_count,
        help=_help("steps", "timed steps of a fit, after two to warm up"),
    )
    add("--rounds", type=positive_count, help=_help("rounds", "rounds that interleave all columns"))
    add(
        "--quality-steps",
        type=positive_count,
        help=_help("quality_steps", "steps of the fit that gives loss, accuracy and memory"),
    )
    add("--threads", type=positive_count, default=1, help="threads of torch (default: 1)")
    add(
        "--max-cpu-seconds",
        type=float,
        default=150.0,
        help="a fit that takes more processor time ends early: fp16 on most CPUs (default: 150)",
    )
    add_report_options(parser, "tiny models and few steps, to try the benchmark")
    return parser


def _help(name: str, text: str) -> str:
    full = _DEFAULTS[name][0]
    return f"{text} (default: {full if isinstance(full, int) else ' '.join(full)})"


def _column(name: str) -> str:
    try:
        return parse_column(name).name
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    main()

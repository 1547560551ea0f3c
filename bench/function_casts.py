"""Step time and cost per operation of O1, in C++ and in Python, against torch.autocast.

``python bench/function_casts.py`` prints a Markdown report; ``bench/README.md`` says how it
measures.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence

from benchkit.cast_report import format_cast_report
from benchkit.command_line import (
    add_report_options,
    make_parser,
    positive_count,
    publish,
    require_linux,
    require_output_folder,
)
from benchkit.environment import (
    TIMING_ALLOCATOR,
    describe_environment,
    describe_load,
    thread_variables,
)
from benchkit.worker import run_worker
from benchkit.workload import WORKLOADS, make_workload

__all__ = ["main"]

# Of a full run, and of a smoke run. Steps are per round and workload; the small ones need many.
_WORKLOADS = ("resnet18", "transformer", "small_transformer", "lstm")
_STEPS = {"small_transformer": 150, "lstm": 20}
_DEFAULT_STEPS = 4
_NUM_THREADS = 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the report and write it to ``--output``.

    Args:
        arguments: Command-line arguments; those of the process by default.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = _make_parser()
    options = parser.parse_args(given)
    require_linux(parser)
    require_output_folder(parser, options.output)
    command = shlex.join(["python", "bench/function_casts.py", *given])
    load_at_start = os.getloadavg()[0]
    variables = {**TIMING_ALLOCATOR, **thread_variables(_NUM_THREADS)}
    shared = {
        "half_dtype": options.half_dtype,
        "num_threads": _NUM_THREADS,
        "num_rounds": 2 if options.smoke else options.rounds,
    }
    steps = {
        make_workload(name, is_smoke=options.smoke).title: run_worker(
            "measure_cast_steps",
            variables,
            workload=name,
            num_steps=2 if options.smoke else _STEPS.get(name, _DEFAULT_STEPS),
            is_smoke=options.smoke,
            **shared,
        )
        for name in options.workloads
    }
    num_calls = 20 if options.smoke else 3000
    op_costs = run_worker("measure_op_costs", variables, num_calls=num_calls, **shared)
    environment = [
        *describe_environment(command, _NUM_THREADS),
        ("Half dtype", options.half_dtype),
        describe_load(load_at_start),
    ]
    report = format_cast_report(environment, steps, op_costs)
    publish(report, options.output)


def _make_parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add(
        "--workloads",
        nargs="*",
        choices=WORKLOADS,
        default=_WORKLOADS,
        help=f"what is trained (default: {' '.join(_WORKLOADS)})",
    )
    add("--half-dtype", choices=("bfloat16", "float16"), default="bfloat16")
    add(
        "--rounds",
        type=positive_count,
        default=7,
        help="rounds that interleave all casts (default: 7)",
    )
    add_report_options(parser, "tiny models and few steps, to try the benchmark")
    return parser


if __name__ == "__main__":
    main()

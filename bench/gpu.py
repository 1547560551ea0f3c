"""Check and time everything on one NVIDIA GPU, in at most 8 minutes.

``python bench/gpu.py --output gpu.md`` writes a Markdown report, anew after every part, so that one
that is cut short still says what it found. ``--device cpu --smoke`` tries the script without a GPU.
"""

import argparse
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import date

import torch
from packaging.version import Version

from benchkit.command_line import (
    add_report_options,
    make_parser,
    require_output_folder,
)
from benchkit.gpu_checks import CHECKS
from benchkit.gpu_report import GpuFindings, format_gpu_report
from benchkit.gpu_stages import Budget, run_checks, run_fits, run_steps, run_tests
from benchkit.workload import make_workload
from lightning_mp.__about__ import __version__
from lightning_mp.kernels.capability import describe_kernels
from lightning_mp.kernels.library import load_kernels

__all__ = ["main", "missing"]

_PARTS = ("checks", "steps", "tests", "fits")
_LEAST_TORCH = "2.11"
# In order of what one wants to know first.
_STEPS = (
    ("gpt2", "bfloat16"),
    ("small", "bfloat16"),
    ("gpt2", "float16"),
    ("resnet50", "bfloat16"),
)
_WORKLOADS = ("gpt2",)
_SMOKE_WORKLOADS = ("transformer",)
_DEFAULT_MINUTES = 8.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Check, time, print the report and write it to ``--output``; exit with 1 if a part failed.

    Args:
        arguments: Command-line arguments; those of the process by default.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parse(given)
    budget = Budget(options.minutes * 60)
    findings = GpuFindings(_describe(shlex.join(["python", "bench/gpu.py", *given]), options))

    def save() -> None:
        if options.output is not None:
            options.output.write_text(format_gpu_report(findings))

    device, is_smoke = options.device, options.smoke
    if "checks" in options.parts:
        findings.checks = run_checks(list(CHECKS), device, budget, is_smoke=is_smoke)
        save()
    for list_name, half_dtype in _STEPS if "steps" in options.parts else ():
        result = run_steps(list_name, half_dtype, device, budget, is_smoke=is_smoke)
        findings.steps[f"{list_name}, {half_dtype}"] = result
        save()
    if "tests" in options.parts:
        findings.tests = run_tests(budget)
        save()
    workloads = _SMOKE_WORKLOADS if is_smoke else _WORKLOADS
    for name in workloads if "fits" in options.parts else ():
        title = make_workload(name, is_smoke=is_smoke).title
        findings.fits[title] = run_fits(name, device, budget, is_smoke=is_smoke)
        save()
    print(format_gpu_report(findings), end="")
    if findings.num_failures:
        sys.exit(1)


def missing() -> str | None:
    """Say what this machine lacks to run on a GPU, and what to do; ``None`` if nothing."""
    if torch.version.cuda is None:
        return (
            f"torch = {torch.__version__}, which is built without CUDA; allowed: torch >= "
            f"{_LEAST_TORCH} for CUDA, on a machine with an NVIDIA GPU; run this script there"
        )
    if not torch.cuda.is_available():
        return (
            f"GPUs = none that torch {torch.__version__} can use; allowed: one NVIDIA GPU with a "
            f"driver for CUDA {torch.version.cuda}; run this script where nvidia-smi lists one"
        )
    if Version(torch.__version__) < Version(_LEAST_TORCH):
        return f"torch = {torch.__version__}; allowed: {_LEAST_TORCH} or later; update it"
    load_kernels()
    if not torch._C._dispatch_has_kernel_for_dispatch_key("lightning_mp::adam_step_", "CUDA"):
        return (
            "kernels for GPUs = not built; allowed: a build that found nvcc; install lightning_mp "
            f"with --no-build-isolation where torch, nvcc {torch.version.cuda} and a C++ compiler "
            "are"
        )
    return None


def _describe(command: str, options: argparse.Namespace) -> list[tuple[str, str]]:
    kernels = [f"{item.operations}: {item.implementation}" for item in describe_kernels()]
    facts = [
        ("Command", f"`{command}`"),
        ("Date", date.today().isoformat()),
        ("Versions", f"lightning_mp {__version__}, torch {torch.__version__}"),
        ("Kernels", "; ".join(kernels)),
        ("System", f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"),
        ("Host", f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the start"),
    ]
    if options.device == "cpu":
        return [*facts, ("Device", "CPU: this only tries the script; no figure here means a thing")]
    properties = torch.cuda.get_device_properties(0)
    size = f"{properties.total_memory / 2**30:.0f} GiB"
    name = f"{properties.name}, sm_{properties.major}{properties.minor}, {size}"
    return [*facts, ("Device", f"{name}, CUDA {torch.version.cuda}")]


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--parts", nargs="+", choices=_PARTS, default=_PARTS, help="what is done (default: all)")
    add(
        "--minutes",
        type=float,
        default=_DEFAULT_MINUTES,
        help="time for everything; what does not fit in is left out (default: 8)",
    )
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu only with --smoke")
    add_report_options(parser, "tiny sizes and few rounds, to try the script")
    options = parser.parse_args(arguments)
    require_output_folder(parser, options.output)
    if options.device == "cpu" and not options.smoke:
        parser.error("--device = cpu; allowed: cuda, or cpu with --smoke; bench/fused_step.py "
                     "times steps on CPUs")  # fmt: skip
    lacks = missing() if options.device == "cuda" else None
    if lacks is not None:
        parser.error(f"{lacks}, or try it with --device cpu --smoke")
    return options


if __name__ == "__main__":
    main()

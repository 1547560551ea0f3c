"""Measurements in processes of their own, with their own environment.

``python -m benchkit.worker FUNCTION ARGUMENTS`` is what they run; arguments and result are JSON.
"""

import importlib
import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from typing import Any

__all__ = ["main", "run_worker"]

_MODULES = {
    "measure_times": "timing",
    "measure_quality": "quality",
    "measure_cast_steps": "cast_steps",
    "measure_op_costs": "op_costs",
    "measure_norm_taps": "norm_taps",
    "measure_step_times": "step_times",
    "measure_step_memory": "step_memory",
    "measure_state_training": "state_training",
    "measure_subnormal_times": "subnormal_times",
    "measure_gpu_checks": "gpu_checks",
    "measure_fits": "gpu_fits",
}


def run_worker(
    function: str,
    environment: Mapping[str, str],
    *,
    timeout_seconds: float | None = None,
    **arguments: Any,
) -> Any:
    """Run a measurement in a new process; its progress goes to stderr.

    Args:
        function: Name of a measurement, a function ``measure_...`` of this package.
        environment: Variables to set there, beside the present ones.
        timeout_seconds: Time after which the process is ended; ``None`` for no limit.
        **arguments: Arguments of the function, such as JSON can hold.

    Returns:
        What the function returned.

    Raises:
        RuntimeError: If the process failed, or took too long.
    """
    # What this process can import, that one must import too, and from the same place.
    path = {"PYTHONPATH": os.pathsep.join(item for item in sys.path if item)}
    try:
        process = subprocess.run(
            [sys.executable, "-m", "benchkit.worker", function, json.dumps(arguments)],
            env={**os.environ, **path, **environment},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(
            f"{function}({arguments}) ran for {timeout_seconds:.0f} s; allowed: less; see its own "
            "messages above"
        ) from None
    if process.returncode != 0:
        raise RuntimeError(
            f"{function}({arguments}) ended with exit code {process.returncode}; expected 0; see "
            "its own message above"
        )
    return json.loads(process.stdout.splitlines()[-1])


def main(function: str, arguments: str) -> None:
    """Run a measurement here and print its result as one line of JSON.

    Args:
        function: Name of the measurement.
        arguments: Its arguments as a JSON object.
    """
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # Each fit of Lightning 2.4 to 2.6 warns of Lightning's own code, and of what is wanted here.
    warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
    warnings.filterwarnings("ignore", ".*does not have many workers")
    # Only what this measurement needs: imports are slow, and count in its memory.
    measure = getattr(importlib.import_module(f"benchkit.{_MODULES[function]}"), function)
    print(json.dumps(measure(**json.loads(arguments))))


if __name__ == "__main__":
    main(*sys.argv[1:])

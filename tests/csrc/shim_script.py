"""Run checks of the kernel shim, each in a process of its own, which may crash.

Reads from stdin a JSON list of [library, check]; writes one JSON list [library, check, error] per
line, where the error is empty for a check that passed.
"""

import json
import os
import signal
import sys
from pathlib import Path

# The library has kernels for CPUs; those of the package would be in their place.
os.environ["LIGHTNING_MP_NO_NATIVE"] = "1"

import torch
from support.shim import Shim
from support.shim_checks import CHECKS

TIMEOUT_SECONDS = 200


def main() -> None:
    torch.set_num_threads(1)
    for library, check in json.load(sys.stdin):
        reader, writer = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(reader)
            run(library, check, writer)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            error = pipe.read()
        status = os.waitpid(process, 0)[1]
        if os.WIFSIGNALED(status):
            error = signal.Signals(os.WTERMSIG(status)).name
        print(json.dumps([library, check, error]), flush=True)


def run(library: str, check: str, writer: int) -> None:
    """Write the error of a check to a pipe, and end this process."""
    signal.alarm(TIMEOUT_SECONDS)
    error = ""
    try:
        CHECKS[check](Shim(Path(library)))
    except (AssertionError, RuntimeError) as problem:
        error = f"{type(problem).__name__}: {problem}"
    os.write(writer, error.encode()[:4000])
    os._exit(0)


if __name__ == "__main__":
    main()

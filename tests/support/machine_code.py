"""What nvcc makes of the CUDA sources: no GPU is needed to look at that."""

import os
import re
import shutil
import subprocess
import sysconfig
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ARCHITECTURES = (80, 90, 100)
NVCC = shutil.which("nvcc")


def disassembler() -> Path | None:
    """Find cuobjdump, of PATH or of the package nvidia-cuda-cuobjdump."""
    in_path = shutil.which("cuobjdump")
    if in_path is not None:
        return Path(in_path)
    found = Path(sysconfig.get_path("purelib"), "nvidia").glob("*/bin/cuobjdump")
    return next(found, None)


@dataclass(frozen=True)
class KernelCode:
    """One kernel for one architecture.

    Args:
        name: Mangled name.
        architecture: 80 for sm_80.
        num_registers: Registers of a thread.
        num_spilled_bytes: Bytes that did not fit into them, stored and loaded.
        num_stack_bytes: Local memory of a thread.
        instructions: Memory instructions with their modifiers, how often each occurs.
    """

    name: str
    architecture: int
    num_registers: int
    num_spilled_bytes: int
    num_stack_bytes: int
    instructions: Counter[str]


def compile_kernels(source: Path, folder: Path) -> list[KernelCode]:
    """Compile a file for all architectures.

    Args:
        source: A file of ``csrc/cuda``.
        folder: Where the object goes.

    Returns:
        All its kernels.
    """
    target = folder / f"{source.stem}.o"
    architectures = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in ARCHITECTURES]
    command = [str(NVCC), "-std=c++17", "-O3", "-fmad=false", f"-I{source.parents[1]}"]
    command += [*architectures, "-Xptxas=-v", "-c", str(source), "-o", str(target)]
    report = _run(command)
    instructions = _instructions(target)
    return [
        KernelCode(name, architecture, *numbers, instructions[name, architecture])
        for (name, architecture), numbers in _resources(report).items()
    ]


def _resources(report: str) -> dict[tuple[str, int], tuple[int, int, int]]:
    """Read registers, spilled bytes and stack of each kernel from what ptxas says."""
    pattern = (
        r"Compiling entry function '(\w+)' for 'sm_(\d+)a?'.*?"
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?"
        r"Used (\d+) registers"
    )
    return {
        (name, int(number)): (int(registers), int(stores) + int(loads), int(stack))
        for name, number, stack, stores, loads, registers in re.findall(pattern, report, re.S)
    }


def _instructions(target: Path) -> dict[tuple[str, int], Counter[str]]:
    tool = disassembler()
    assert tool is not None
    # cuobjdump starts nvdisasm, which is beside it.
    path = os.pathsep.join([str(tool.parent), os.environ.get("PATH", "")])
    listing = _run([str(tool), "-sass", str(target)], PATH=path)
    result: dict[tuple[str, int], Counter[str]] = {}
    for part in re.split(r"code for sm_", listing)[1:]:
        architecture = int(re.match(r"\d+", part)[0])
        for function in part.split("Function : ")[1:]:
            found = re.findall(r"\b((?:LD|ST)[A-Z]*\.[\w.]+)", function)
            result[function.split()[0], architecture] = Counter(found)
    return result


def _run(command: list[str], **environment: str) -> str:
    finished = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    assert finished.returncode == 0, finished.stderr[-4000:]
    return finished.stdout + finished.stderr

"""Results are the same, bit for bit, on every instruction set and any number of threads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.kernels import requires_kernels

from lightning_mp.kernels.library import load_kernels

pytestmark = [pytest.mark.slow, requires_kernels]


def run(repo_root: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(repo_root), str(repo_root / "tests")])
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_results_do_not_depend_on_instruction_set_or_threads(repo_root: Path):
    script = str(Path(__file__).with_name("bit_script.py"))
    hashes = {}
    for isa, threads in [("base", 1), ("avx2", 3), ("avx512", 1), ("avx512", 2)]:
        environment = {"LIGHTNING_MP_ISA": isa, "OMP_NUM_THREADS": str(threads)}
        done = run(repo_root, script, **environment)
        assert done.returncode == 0, done.stderr
        hashes[isa, threads] = done.stdout
    assert len(set(hashes.values())) == 1, hashes


def test_the_instruction_set_can_be_lowered(repo_root: Path):
    show = "from lightning_mp.kernels.library import load_kernels; print(load_kernels().isa)"
    for isa in ("base", "avx2", "avx512"):
        found = run(repo_root, "-c", show, LIGHTNING_MP_ISA=isa).stdout.strip()
        assert found == min(isa, load_kernels().isa, key=["base", "avx2", "avx512"].index)
    done = run(repo_root, "-c", show, LIGHTNING_MP_ISA="sse9")
    assert "RuntimeError: LIGHTNING_MP_ISA = 'sse9'; base, avx2 or avx512 is allowed" in done.stderr

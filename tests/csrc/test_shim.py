"""The CUDA kernels on the CPU: the same bits as the CPU's own, and planted bugs are found."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.kernel_shim import ShimBuild
from support.planted_bugs import PLANTED_BUGS, PlantedBug
from support.shim_checks import CHECKS
from torch.utils.cpp_extension import get_cxx_compiler

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which(get_cxx_compiler().split()[0]) is None, reason="no C++ compiler"
    ),
    # Compilers are slow on machines that others use too.
    pytest.mark.timeout(1200),
]
SCRIPT = Path(__file__).with_name("shim_script.py")


@pytest.fixture(scope="module")
def shim_build(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> ShimBuild:
    units = {bug.unit for bug in PLANTED_BUGS.values()}
    return ShimBuild(repo_root / "csrc", tmp_path_factory.mktemp("shim"), units)


@pytest.fixture(scope="module")
def clean_library(shim_build: ShimBuild) -> Path:
    return shim_build.clean()


def errors_of(runs: list[tuple[Path, str]], repo_root: Path) -> list[str]:
    """Run checks with libraries; return what each of them found, which may be nothing."""
    paths = os.pathsep.join(str(path) for path in (repo_root, repo_root / "tests"))
    finished = subprocess.run(
        [sys.executable, str(SCRIPT)],
        input=json.dumps([[str(library), check] for library, check in runs]),
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line)[2] for line in finished.stdout.splitlines()]


def test_kernels_are_the_cpu_s_bit_for_bit(clean_library: Path, repo_root: Path) -> None:
    errors = errors_of([(clean_library, check) for check in CHECKS], repo_root)

    assert dict(zip(CHECKS, errors, strict=True)) == dict.fromkeys(CHECKS, "")


def test_planted_bugs_are_found(
    shim_build: ShimBuild, clean_library: Path, repo_root: Path
) -> None:
    def build(index: int, bug: PlantedBug) -> tuple[Path, str]:
        change = (bug.file, bug.old, bug.new)
        return shim_build.variant(f"bug{index}", change, bug.unit), bug.check

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = list(pool.map(build, range(len(PLANTED_BUGS)), PLANTED_BUGS.values()))

    errors = errors_of(runs, repo_root)

    missed = [name for name, error in zip(PLANTED_BUGS, errors, strict=True) if not error]
    assert not missed

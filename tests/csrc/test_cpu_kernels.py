"""The kernels for CPUs under sanitizers, without torch; planted mistakes are found."""

import platform
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.native import has_compiler
from torch.utils.cpp_extension import get_cxx_compiler

from lightning_mp.kernels.library import load_kernels

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not has_compiler() or platform.machine() != "x86_64", reason="no compiler for x86-64"
    ),
]

FLAGS = [
    *("-std=c++20", "-O1", "-g1", "-ffp-contract=off", "-fno-math-errno"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
]
ISA_FLAGS = {
    "kernels_avx2": ["-mavx2", "-mfma", "-mf16c"],
    "kernels_avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma"],
}


def compile_file(source: Path, includes: Path, target: Path) -> Path:
    command = [*get_cxx_compiler().split(), *FLAGS, *ISA_FLAGS.get(source.stem, [])]
    command += [f"-I{includes}", "-c", str(source), "-o", str(target / f"{source.stem}.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target / f"{source.stem}.o"


def link(objects: list[Path], target: Path) -> Path:
    command = [*get_cxx_compiler().split(), "-fsanitize=address,undefined", *map(str, objects)]
    subprocess.run([*command, "-o", str(target)], check=True)
    return target


@pytest.fixture(scope="module")
def objects(repo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Compile all files; the object files by name."""
    folder = tmp_path_factory.mktemp("objects")
    sources = [*(repo_root / "csrc/cpu").glob("*.cpp"), repo_root / "tests/csrc/cpu_driver.cpp"]
    with ThreadPoolExecutor(2) as pool:
        compiled = pool.map(lambda path: compile_file(path, repo_root / "csrc", folder), sources)
    return {path.stem: path for path in compiled}


@pytest.fixture(scope="module")
def driver(objects: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return link([*objects.values()], tmp_path_factory.mktemp("driver") / "driver")


@pytest.mark.parametrize("isa", ["base", "avx2", "avx512"])
def test_every_element_is_that_of_the_rule_and_no_other_memory_is_touched(driver: Path, isa: str):
    done = subprocess.run([driver, isa], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert f"0 failures on {isa}" in done.stdout or "not on this machine" in done.stdout


def test_nothing_of_an_instruction_set_is_shared(objects: dict[str, Path]):
    """An inline function of the C++ library here could run on a machine that cannot."""
    for isa in ("base", "avx2", "avx512"):
        symbols = subprocess.run(
            ["nm", "-C", "--defined-only", objects[f"kernels_{isa}"]],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        # Kinds in upper case are seen by the linker; of these, W, V and u are merged.
        shared = [line for line in symbols.splitlines() if line.split(maxsplit=2)[1] in "TWVuD"]
        assert shared
        assert [
            line
            for line in shared
            if f"lightning_mp::cpu::{isa}::" not in line
            # What sanitizers and the unwinder of exceptions add; no code.
            and not re.search("asan|DW.ref", line)
        ] == []


@pytest.mark.skipif(load_kernels().isa in ("", "base"), reason="no AVX2")
@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("step.inc", "left >= kGroup; left -=", "left >= kGroup - 1; left -="),
        ("step.inc", "result.states[k] += by", "result.states[k] += by - by % 32"),
        ("step.inc", "{}, at.place}", "{}, 0}"),
        ("step.inc", "at.place + offset", "at.place"),
        ("words_avx2.h", "2, 3, 4, 5, 6, 7", "2, 3, 4, 5, 7, 6"),
        ("map.inc", "if (i < numel)", "if (i + 1 < numel)"),
        ("norm.inc", "i + kNormLanes <= numel", "i + kNormLanes <= numel + 1"),
        ("cross_entropy.inc", "i + Vector::kWidth <= count", "i < count"),
        ("cross_entropy.inc", "count - i, maximum, lanes", "count - i - 1, maximum, lanes"),
    ],
)
def test_planted_mistakes_are_found(
    objects: dict[str, Path], repo_root: Path, tmp_path: Path, file: str, right: str, wrong: str
):
    sources = shutil.copytree(repo_root / "csrc", tmp_path / "csrc")
    mutated = sources / "cpu" / file
    assert right in mutated.read_text()
    mutated.write_text(mutated.read_text().replace(right, wrong))
    changed = compile_file(sources / "cpu/kernels_avx2.cpp", sources, tmp_path)
    others = [path for name, path in objects.items() if name != "kernels_avx2"]
    driver = link([*others, changed], tmp_path / "driver")
    done = subprocess.run([driver, "avx2"], capture_output=True, check=False)
    assert done.returncode != 0

"""The library is there wherever it can be, so that no test of it is skipped for want of a build."""

import hashlib
import subprocess
from pathlib import Path

import pytest
from support.native import builds_fl, has_compiler
from support.work_tree import require_work_tree

from lightning_mp.amp.native_library import load_native_library
from lightning_mp.fl.library import load_fl_library
from lightning_mp.kernels.library import load_kernels

needs_compiler = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler, or opted out")
needs_fl = pytest.mark.skipif(not builds_fl(), reason="no C++ compiler, or another torch")
BUILD = "in a checkout: python setup.py build_ext --inplace"


def digest(root: Path, *folders: str) -> str:
    files = sorted(
        path
        for folder in folders
        for path in (root / "csrc" / folder).iterdir()
        if path.suffix in {".cpp", ".h", ".inc", ".cu", ".cuh"}
    )
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


@needs_compiler
def test_the_library_is_built_where_a_compiler_is():
    library, reason = load_native_library()
    assert library is not None, f"{reason}; {BUILD}"


@needs_compiler
def test_the_library_is_built_of_these_sources(repo_root: Path):
    library, _ = load_native_library()
    assert library is not None
    assert digest(repo_root, "o1") == library.SOURCE_DIGEST, BUILD


@needs_compiler
def test_the_kernels_are_built_of_these_sources_where_a_compiler_is(repo_root: Path):
    library = load_kernels()
    assert library.is_loaded, f"{library.reason}; {BUILD}"
    expected = digest(repo_root, "bind", "common", "cpu", "cuda", "functors")
    assert library.source_digest == expected, BUILD


@needs_fl
def test_the_device_is_built_of_these_sources_where_a_compiler_is(repo_root: Path):
    library = load_fl_library()
    assert library.is_loaded, f"{library.reason}; {BUILD}"
    folders = ("fl", "fl/bind", "fl/dispatch", "fl/memory", "fl/operators", "fl/runtime")
    assert digest(repo_root, *folders) == library.source_digest, BUILD


def test_the_library_is_not_tracked(repo_root: Path):
    require_work_tree(repo_root)
    ignored = subprocess.run(
        ["git", "check-ignore", "--quiet", "lightning_mp/_O1.cpython-311-x86_64-linux-gnu.so"],
        cwd=repo_root,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ignored.returncode == 0, ignored.stderr

"""The library is there wherever it can be, so that no test of it is skipped for want of a build."""

import hashlib
import subprocess
from pathlib import Path

import pytest
from support.native import has_compiler

from lightning_mp.amp.native_library import load_native_library


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler, or opted out")
def test_the_library_is_built_where_a_compiler_is():
    library, reason = load_native_library()
    assert library is not None, f"{reason}; in a checkout: python setup.py build_ext --inplace"


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler, or opted out")
def test_the_library_is_built_of_these_sources(repo_root: Path):
    library, _ = load_native_library()
    assert library is not None
    files = sorted(p for p in (repo_root / "csrc/o1").iterdir() if p.suffix in {".cpp", ".h"})
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    assert digest.startswith(library.SOURCE_DIGEST), "build again: python setup.py build_ext -i"


def test_the_library_is_not_tracked(repo_root: Path):
    ignored = subprocess.run(
        ["git", "check-ignore", "--quiet", "lightning_mp/_O1.cpython-311-x86_64-linux-gnu.so"],
        cwd=repo_root,
        check=False,
    )
    if ignored.returncode == 128:
        pytest.skip("not a git work tree")
    assert ignored.returncode == 0

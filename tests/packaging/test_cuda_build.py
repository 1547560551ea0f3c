"""When setup.py builds kernels for GPUs, and that what it builds loads with any torch."""

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import setuptools
import torch
from torch.utils import cpp_extension

LOAD = """
import sys, torch
from lightning_mp.kernels.definitions import NAMESPACE, SCHEMAS
torch.ops.load_library(sys.argv[1])
for name in SCHEMAS:
    for key in ("CPU", "CUDA"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"{NAMESPACE}::{name}", key), name
"""


@pytest.fixture
def setup_script(monkeypatch: pytest.MonkeyPatch, repo_root: Path) -> dict[str, Any]:
    """The functions of setup.py."""
    monkeypatch.setattr(setuptools, "setup", lambda **options: None)
    monkeypatch.chdir(repo_root)
    return runpy.run_path(str(repo_root / "setup.py"))


def make_nvcc(folder: Path, said: str) -> Path:
    nvcc = folder / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(f"#!/bin/sh\nprintf '{said}'\n")
    nvcc.chmod(0o755)
    return nvcc


@pytest.mark.parametrize(
    ("torch_cuda", "wish", "is_used", "warning"),
    [
        ("13.0", "", True, ""),
        (None, "", False, ""),
        ("12.8", "", False, r"nvcc is of CUDA 13, torch of CUDA 12; steps on GPUs then run as"),
        ("13.0", "0", False, ""),
        (None, "1", True, ""),
        ("12.8", "1", True, ""),
    ],
)
def test_nvcc_is_used_if_it_fits_torch(
    setup_script: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    torch_cuda: str | None,
    wish: str,
    is_used: bool,
    warning: str,
) -> None:
    nvcc = make_nvcc(tmp_path, "Cuda compilation tools, release 13.0, V13.0.88\\n")
    monkeypatch.setenv("LIGHTNING_MP_CUDA", wish)
    monkeypatch.setattr(torch.version, "cuda", torch_cuda)

    found = setup_script["find_nvcc"](SimpleNamespace(CUDA_HOME=str(tmp_path)))

    assert found == (str(nvcc) if is_used else None)
    said = capsys.readouterr().err
    assert re.search(warning, said)
    assert bool(said) == bool(warning)


def test_no_nvcc_is_no_error(
    setup_script: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LIGHTNING_MP_CUDA", "1")
    assert setup_script["find_nvcc"](SimpleNamespace(CUDA_HOME=str(tmp_path))) is None


def test_gpus_that_nvcc_does_not_know_are_left_out(
    setup_script: dict[str, Any], tmp_path: Path
) -> None:
    nvcc = make_nvcc(tmp_path, "compute_75\\ncompute_80\\ncompute_90\\n")

    architectures, flags = setup_script["gpu_flags"](str(nvcc))

    assert architectures == "sm_80, sm_90"
    assert flags == [
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90,code=[sm_90,compute_90]",
    ]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_the_library_with_kernels_for_gpus_loads_with_this_torch(
    setup_script: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    repo_root: Path,
) -> None:
    monkeypatch.setenv("LIGHTNING_MP_CUDA", "1")
    library = tmp_path / "_C.so"
    compiler = cpp_extension.get_cxx_compiler()

    setup_script["build_kernels"](compiler, cpp_extension, tmp_path / "objects", library)

    loaded = subprocess.run(
        [sys.executable, "-c", LOAD, str(library)], cwd=repo_root, capture_output=True, text=True
    )
    assert loaded.returncode == 0, loaded.stderr

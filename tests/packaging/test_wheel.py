"""Wheel and sdist: built, listed, installed outside the repository and used there."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from email import message_from_bytes
from pathlib import Path

import pytest
from support.native import builds_fl, has_compiler

import lightning_mp

pytestmark = pytest.mark.slow

CHECK_INSTALL = """
import pickle, sys
import lightning_mp, lightning_mp.callbacks
from lightning_mp.callbacks import MasterGradClip
assert lightning_mp.__file__.startswith(sys.prefix), lightning_mp.__file__
assert lightning_mp.callbacks.MasterGradClip is MasterGradClip
assert type(pickle.loads(pickle.dumps(MasterGradClip(max_norm=1.0)))) is MasterGradClip
print(lightning_mp.__version__)
"""

# These say why, if the casts or the kernels are not native.
CHECK_CASTS = """
import torch
from lightning_mp.amp.function_casts import FunctionCasts
casts = FunctionCasts(torch.bfloat16, device_types=("cpu",))
with casts.context():
    assert torch.ones(3).bfloat16().exp().dtype is torch.float32
print(casts.implementation, casts.reason)
"""

CHECK_FL = """
import torch, lightning_mp
try:
    print(torch.ones(3, device=lightning_mp.fl.device(0)).sum().item())
except RuntimeError as error:
    print(error)
"""

CHECK_KERNELS = """
import torch
from lightning_mp.kernels.gradient_stats import gradient_stats_
from lightning_mp.kernels.library import load_kernels
norm, factor, found_inf = torch.zeros(3, 1).unbind()
gradient_stats_([torch.tensor([3.0, 4.0])], norm=norm, factor=factor, found_inf=found_inf)
assert norm.item() == 5
library = load_kernels()
print("native" if library.is_loaded else "reference", library.reason)
"""


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def packaged_files(root: Path) -> set[str]:
    """Names that a wheel must hold, read off the source tree; links are followed by hand."""
    sources = [
        path
        for folder, patterns in {
            "lightning_mp": ("*.py", "*.pyi", "*.yaml", "py.typed"),
            "callbacks": ("*.py",),
            "configs": ("*.yaml",),
        }.items()
        for pattern in patterns
        for path in (root / folder).rglob(pattern)
    ]
    names = {path.relative_to(root).as_posix() for path in sources}
    return {n if n.startswith("lightning_mp/") else f"lightning_mp/{n}" for n in names}


def build(source: Path, folder: Path, *options: str, **environment: str) -> str:
    """Build distributions, and return what the build says."""
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        *options,
        "--outdir",
        folder,
        source,
    ]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture
def distributions(source_copy: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The sdist and the wheel that is built from the unpacked sdist."""
    folder = tmp_path / "dist"
    build(source_copy, folder)
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def test_wheel_is_complete_and_works_outside_the_repository(
    distributions: tuple[Path, Path],
    repo_root: Path,
    tmp_path: Path,
    make_environment: Callable[[Path], Path],
):
    sdist, wheel = distributions
    expected = packaged_files(repo_root)
    assert {"lightning_mp/callbacks/__init__.py", "lightning_mp/configs/digits_o2.yaml"} < expected

    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata_name,) = (n for n in names if n.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(archive.read(metadata_name))
    info = metadata_name.removesuffix("METADATA")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    built = [*(["_O1", "_C"] if has_compiler() else []), *(["_fl"] if builds_fl() else [])]
    native = {f"lightning_mp/{name}{suffix}" for name in built}
    assert {n for n in names if not n.startswith(info)} == expected | native
    assert f"{info}licenses/LICENSE" in names
    assert metadata["Name"] == "lightning-mp"
    assert metadata["Version"] == lightning_mp.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"dev", "vision", "lm"} <= set(metadata.get_all("Provides-Extra", []))

    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert expected | {"setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"} <= inside
    sources = {path.relative_to(repo_root).as_posix() for path in (repo_root / "csrc").rglob("*.*")}
    assert {"csrc/o1/kernels.cpp", "csrc/o1/kernels.h"} < sources <= inside
    assert not {name for name in inside if name.startswith("tests/") or name.endswith(".so")}

    python = make_environment(tmp_path / "clean env")
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    outside = Path("/")
    assert run(python, "-c", CHECK_INSTALL, cwd=outside).strip() == lightning_mp.__version__
    for command in ([python, "-m", "lightning_mp"], [python.with_name("lightning-mp")]):
        assert "fit" in run(*command, "--help", cwd=outside)
    implementation = "native" if has_compiler() else "python"
    assert run(python, "-c", CHECK_CASTS, cwd=outside).startswith(implementation)
    implementation = "native" if has_compiler() else "reference"
    assert run(python, "-c", CHECK_KERNELS, cwd=outside).startswith(implementation)
    expected = "3.0" if builds_fl() else "device type fl = not available; lightning_mp._fl is not"
    assert run(python, "-c", CHECK_FL, cwd=outside).startswith(expected)


def write_failing_compiler(folder: Path) -> Path:
    compiler = folder / "failing compiler" / "c++"
    compiler.parent.mkdir()
    compiler.write_text("#!/bin/sh\necho no such header >&2\nexit 1\n")
    compiler.chmod(0o755)
    return compiler.parent


@pytest.mark.parametrize(
    ("name", "reason", "tag"),
    [
        ("opted out", r"LIGHTNING_MP_NO_NATIVE = '1'", "-none-any"),
        ("no compiler", r"no C\+\+ compiler \('no-such-compiler' is not on PATH", "-none-any"),
        ("failing", r"the build failed \(\w+: ", "-linux"),
    ],
)
def test_a_build_without_the_library_warns_once_and_works(
    source_copy: Path,
    tmp_path: Path,
    make_environment: Callable[[Path], Path],
    name: str,
    reason: str,
    tag: str,
):
    environment = {
        "opted out": {"LIGHTNING_MP_NO_NATIVE": "1"},
        "no compiler": {"CXX": "no-such-compiler"},
        "failing": {"PATH": f"{write_failing_compiler(tmp_path)}{os.pathsep}{os.environ['PATH']}"},
    }[name]
    said = build(source_copy, tmp_path / "dist", "--wheel", **environment)
    warnings = [line for line in said.splitlines() if "without its native library" in line]
    # Each of the steps of a build, such as listing its requirements, runs setup.py.
    assert len(set(warnings)) == 1
    assert re.search(f"warning: .*{reason}", warnings[0])

    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert tag in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
    python = make_environment(tmp_path / "env")
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    said = run(python, "-c", CHECK_CASTS, cwd=Path("/"))
    assert said.startswith("python lightning_mp._O1 is not built; install lightning_mp with")
    said = run(python, "-c", CHECK_KERNELS, cwd=Path("/"))
    assert said.startswith("reference lightning_mp._C is not built; install lightning_mp with")
    said = run(python, "-c", CHECK_FL, cwd=Path("/"))
    assert said.startswith("device type fl = not available; lightning_mp._fl is not built; install")

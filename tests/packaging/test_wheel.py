"""Wheel and sdist: built, listed, installed outside the repository and used there."""

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from email import message_from_bytes
from pathlib import Path

import pytest

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


@pytest.fixture
def distributions(source_copy: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The sdist and the wheel that is built from the unpacked sdist."""
    folder = tmp_path / "dist"
    run(
        sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source_copy,
        cwd=tmp_path,
    )  # fmt: skip
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
    assert {n for n in names if not n.startswith(info)} == expected
    assert f"{info}licenses/LICENSE" in names
    assert metadata["Name"] == "lightning-mp"
    assert metadata["Version"] == lightning_mp.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"dev", "vision", "lm"} <= set(metadata.get_all("Provides-Extra", []))

    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert expected | {"setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"} <= inside
    assert not {name for name in inside if name.startswith("tests/")}

    python = make_environment(tmp_path / "clean env")
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    outside = Path("/")
    assert run(python, "-c", CHECK_INSTALL, cwd=outside).strip() == lightning_mp.__version__
    for command in ([python, "-m", "lightning_mp"], [python.with_name("lightning-mp")]):
        assert "fit" in run(*command, "--help", cwd=outside)

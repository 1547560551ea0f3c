"""Fixtures of the tests of the whole project: a copy of the sources, a clean environment."""

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

# It chooses a package of Lightning for its whole process, so it is run, never imported.
collect_ignore = ["standalone_script.py"]

ROOT = Path(__file__).parents[1]
# These tests activate the device fl, which changes torch.accelerator, and allocations on the CPU,
# for the rest of their process.
FL_TESTS = ROOT / "tests" / "fl" / "active"
NOT_SOURCES = shutil.ignore_patterns(
    ".git",
    ".venv*",
    "build",
    "dist",
    "*.egg-info",
    "__pycache__",
    ".*_cache",
    "runs",
    "*_logs",
    "*.so",
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect the tests of fl only where nothing else is: ``pytest tests/fl/active``."""
    if not collection_path.is_relative_to(FL_TESTS):
        return None
    asked = (argument.partition("::")[0] for argument in config.args)
    folder = config.invocation_params.dir
    is_alone = all((folder / path).resolve().is_relative_to(FL_TESTS) for path in asked)
    return None if is_alone else True


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return ROOT


@pytest.fixture
def source_copy(tmp_path: Path) -> Path:
    """A copy of the sources, as a clone has them, in a folder with a space in its name."""
    copy = tmp_path / "a b" / "clone"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=NOT_SOURCES)
    return copy


@pytest.fixture
def make_environment() -> Callable[[Path], Path]:
    """Make an environment that has what the running one has, but for the project itself."""

    def make(folder: Path) -> Path:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = folder / "bin" / "python"
        # Python 3.10 and 3.11 put an old setuptools into each environment.
        subprocess.run(
            [python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools"], check=True
        )
        site_packages = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip
        # A path listed in a .pth file is searched, but .pth files in it are not read: the
        # dependencies are found, an editable install of the project is not.
        parent = sysconfig.get_path("purelib")
        Path(site_packages, "dependencies.pth").write_text(f"{parent}\n")
        return python

    return make

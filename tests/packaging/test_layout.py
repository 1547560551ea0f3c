"""The shape of the repository: what design and packaging rely on."""

import importlib
import os
import pickle
import subprocess
from pathlib import Path

import pytest
from packaging.version import Version
from support.work_tree import require_work_tree

import lightning_mp
from lightning_mp.callbacks import MasterGradClip

LINKS = ["callbacks", "configs"]
FOLDERS = ["lightning_mp", "callbacks", "csrc", "configs", "tests", "bench", "docs"]
FILES = [
    "setup.cfg", "setup.py", "pyproject.toml", "Makefile", ".ci/run", "LICENSE",
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md",
]  # fmt: skip


@pytest.mark.parametrize("name", LINKS)
def test_package_folder_is_a_link_to_the_top_level(repo_root: Path, name: str):
    link = repo_root / "lightning_mp" / name
    assert link.is_symlink()
    assert os.readlink(link) == f"../{name}"


@pytest.mark.parametrize("name", LINKS)
def test_git_tracks_the_link_and_not_a_copy(repo_root: Path, name: str):
    require_work_tree(repo_root)
    listing = subprocess.run(
        ["git", "ls-files", "--stage", "--", f"lightning_mp/{name}"],
        cwd=repo_root, check=True, capture_output=True, text=True,
    )  # fmt: skip
    entries = listing.stdout.splitlines()
    assert len(entries) == 1
    assert entries[0].startswith("120000 ")


@pytest.mark.parametrize(
    ("environment", "outcome"),
    [
        ("", pytest.skip.Exception),
        ("false", pytest.skip.Exception),
        ("true", pytest.fail.Exception),
    ],
)
def test_what_needs_git_is_skipped_outside_a_clone_but_not_on_ci(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: str, outcome: type[Exception]
):
    monkeypatch.setenv("CI", environment)
    with pytest.raises(outcome, match="git work tree"):
        require_work_tree(tmp_path)
    (tmp_path / ".git").touch()
    require_work_tree(tmp_path)


@pytest.mark.parametrize("name", FOLDERS)
def test_top_level_folder_is_there(repo_root: Path, name: str):
    assert (repo_root / name).is_dir()


@pytest.mark.parametrize("name", FILES)
def test_top_level_file_is_there(repo_root: Path, name: str):
    assert (repo_root / name).is_file()


def test_ci_script_is_executable(repo_root: Path):
    assert os.access(repo_root / ".ci" / "run", os.X_OK)


def test_second_import_of_the_callbacks_is_refused(
    repo_root: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(repo_root))
    with pytest.raises(ImportError, match=r"as 'lightning_mp\.callbacks', not as 'callbacks'"):
        importlib.import_module("callbacks")


def test_callback_is_pickled_under_its_public_package():
    copy = pickle.loads(pickle.dumps(MasterGradClip(max_norm=1.0)))
    assert type(copy) is MasterGradClip
    assert type(copy).__module__.startswith("lightning_mp.callbacks.")


def test_version_is_a_normal_pep_440_version():
    assert str(Version(lightning_mp.__version__)) == lightning_mp.__version__

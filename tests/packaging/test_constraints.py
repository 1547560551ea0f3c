"""The constraints pin every requirement, within the range that setup.cfg promises."""

import configparser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

FILES = ["constraints.txt", "constraints-lightning-2.4.txt"]


@pytest.fixture(scope="module")
def requirements(repo_root: Path) -> list[Requirement]:
    """What is installed for tests: the base requirements and the extras."""
    config = configparser.ConfigParser()
    config.read(repo_root / "setup.cfg")
    extras = config["options.extras_require"]
    text = "\n".join([config["options"]["install_requires"], *extras.values()])
    return [Requirement(line) for line in text.splitlines() if line]


def pins_in(path: Path) -> dict[str, Version]:
    lines = [Requirement(line) for line in path.read_text().splitlines() if line[0] != "#"]
    return {canonicalize_name(line.name): Version(str(line.specifier)[2:]) for line in lines}


@pytest.mark.parametrize("name", FILES)
def test_every_requirement_is_pinned_within_its_range(
    repo_root: Path, requirements: list[Requirement], name: str
):
    pins = pins_in(repo_root / name)
    assert len(requirements) > 10
    for requirement in requirements:
        pin = pins[canonicalize_name(requirement.name)]
        assert pin in requirement.specifier, requirement


def test_second_file_is_the_oldest_lightning_and_the_same_torch(repo_root: Path):
    newest, oldest = (pins_in(repo_root / name) for name in FILES)
    assert oldest["lightning"].release[:2] == (2, 4)
    assert newest["lightning"] > oldest["lightning"]
    assert newest["torch"] == oldest["torch"]

"""Every block of the README and of the pages in docs is executed, the test command aside.

Code that is only to be read, such as that of other libraries, is tagged ``text``.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
TEST_COMMAND = "make test"


def blocks(language: str, page: Path = README) -> list[str]:
    pattern = rf"^```{language}\n(.*?)^```$"
    return re.findall(pattern, page.read_text(), flags=re.MULTILINE | re.DOTALL)


PYTHON_BLOCKS = [
    pytest.param(block, id=f"{page.stem}: {block.partition(chr(10))[0]}")
    for page in PAGES
    for block in blocks("python", page)
]


def run(command: list[str], *, cwd: Path, **environment: str) -> None:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"


def test_readme_has_blocks_of_each_kind_and_the_two_commands():
    shell = "\n".join(blocks("bash")).splitlines()
    assert len(blocks("python")) >= 2
    assert len(blocks("yaml")) >= 1
    assert any(line.startswith("make run") for line in shell)
    assert any(line.startswith(TEST_COMMAND) for line in shell)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_tag_is_one_that_is_run_or_says_that_it_is_not(page: Path):
    tags = re.findall(r"^```(\w*)\n.*?^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    run_here = {"python", "bash", "yaml"} if page == README else {"python"}
    assert set(tags) <= {*run_here, "text", ""}


def test_every_file_that_the_readme_tours_is_there(repo_root: Path):
    names = re.findall(r"^\d\. `([\w/]+\.py)`", README.read_text(), re.MULTILINE)
    assert len(names) >= 6
    assert [name for name in names if not (repo_root / name).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_to_a_file_and_a_heading(page: Path):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert link.startswith("https://") or target.exists(), link
        if anchor and not link.startswith("https://"):
            assert anchor in headings(target), link


def headings(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.slow
@pytest.mark.parametrize("block", PYTHON_BLOCKS)
def test_python_block_runs(block: str, repo_root: Path, tmp_path: Path):
    script = tmp_path / "block.py"
    script.write_text(block)
    run([sys.executable, str(script)], cwd=tmp_path, PYTHONPATH=str(repo_root))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_shell_blocks_run_in_order_in_a_clone(
    source_copy: Path, make_environment: Callable[[Path], Path]
):
    for block in blocks("yaml"):
        name = block.split("\n", 1)[0].removeprefix("# ")
        (source_copy / name).write_text(block)
    # make finds the environment as its own install would have left it, without the downloads.
    python = make_environment(source_copy / ".venv")
    install = ["-m", "pip", "install", "--no-deps", "--no-build-isolation", "--editable", "."]
    run([str(python), *install], cwd=source_copy)
    (source_copy / ".venv" / ".installed").touch()

    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    for block in blocks("bash"):
        lines = [line for line in block.splitlines() if not line.startswith(TEST_COMMAND)]
        run(["bash", "-euo", "pipefail", "-c", "\n".join(lines)], cwd=source_copy, PATH=path)

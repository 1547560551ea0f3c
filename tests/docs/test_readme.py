"""Every block of the README is executed, the test command aside."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
TEST_COMMAND = "make test"


def blocks(language: str) -> list[str]:
    pattern = rf"^```{language}\n(.*?)^```$"
    return re.findall(pattern, README.read_text(), flags=re.MULTILINE | re.DOTALL)


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


def test_every_file_that_the_readme_names_is_there(repo_root: Path):
    text = README.read_text()
    names = re.findall(r"^\d\. `([\w/]+\.py)`", text, re.MULTILINE)
    names += re.findall(r"\]\(([^)]+)\)", text)
    assert len(names) > 6
    assert [name for name in names if not (repo_root / name).is_file()] == []


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.split("\n", 1)[0])
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

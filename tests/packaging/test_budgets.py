"""Files and functions stay short enough to be read at once."""

import ast
from pathlib import Path

import pytest

FOLDERS = ("lightning_mp", "callbacks", "csrc", "tests", "bench", "examples")
SUFFIXES = {".py", ".cpp", ".h", ".cu", ".cuh", ".inc"}
MAX_FILE_LINES = 400
MAX_BODY_LINES = 60


def sources(root: Path) -> list[Path]:
    found = {root / "setup.py"}
    for folder in FOLDERS:
        # The package has links to other folders.
        found |= {path.resolve() for path in (root / folder).rglob("*") if path.suffix in SUFFIXES}
    return sorted(found)


def long_functions(source: str) -> list[str]:
    """Name functions whose body is too long, docstring and signature not counted."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            has_docstring = ast.get_docstring(node, clean=False) is not None
            body = node.body[1:] if has_docstring else node.body
            num_lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            if num_lines > MAX_BODY_LINES:
                found.append(f"{node.name}: {num_lines}")
    return found


def test_no_file_is_too_long(repo_root: Path):
    files = sources(repo_root)
    assert {path.suffix for path in files} == SUFFIXES
    counts = {str(path): len(path.read_text().splitlines()) for path in files}
    assert {path: count for path, count in counts.items() if count > MAX_FILE_LINES} == {}


def test_no_function_is_too_long(repo_root: Path):
    found = {
        str(path): names
        for path in sources(repo_root)
        if path.suffix == ".py" and (names := long_functions(path.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(("num_lines", "expected"), [(60, []), (61, ["long: 61"])])
def test_the_lines_of_a_body_count(num_lines: int, expected: list[str]):
    docstring = '    """' + "\n" * 100 + '    """\n'
    arguments = ",\n".join(f"    argument{index}" for index in range(70))
    body = "    pass\n" * num_lines
    source = f"def long(\n{arguments}\n):\n{docstring}{body}"
    assert long_functions(source) == expected
    assert long_functions(f"async def empty():\n{docstring}") == []

"""docs/errors.md lists every error and warning that the sources can raise or print.

The sources are read, not run. A message is taken from the first argument of the exception or of the
warning call; where that is made by a helper of the same file, from the helper; in C++ from what
follows the condition of a TORCH_CHECK, or stands in a TORCH_WARN. What is put in at run time
becomes an ellipsis, and only the beginning of a message is asked for.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "errors.md"
SOURCES = sorted(
    [
        *(ROOT / "lightning_mp").rglob("*.py"),
        *(ROOT / "callbacks").glob("*.py"),
        *(ROOT / "csrc").rglob("*.cpp"),
        *(ROOT / "csrc").rglob("*.h"),
    ]
)
WARNING_CALLS = {"warn", "rank_zero_warn", "rank_zero_deprecation"}
PRINTING_CALLS = {"print", "maybe_print"}
# Printed lines that tell of something amiss; the others are reports.
ALARM = re.compile("warning:|gradient overflow|overflow:", re.IGNORECASE)
# A beginning with fewer letters than this says too little to be looked up.
FEWEST_LETTERS = 12
Scope = dict[str, ast.AST]


def test_the_sources_are_found():
    assert len(SOURCES) > 40
    assert len({pattern for path in SOURCES for pattern in patterns_of(path)}) > 90


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_message_is_listed(path: Path):
    listed = PAGE.read_text()
    missing = [item for item in dict.fromkeys(patterns_of(path)) if f"`{item}" not in listed]
    assert missing == [], "add to docs/errors.md:\n" + "\n".join(f"| `{x}` | | |" for x in missing)


def test_every_listed_message_is_in_the_sources():
    known = {pattern for path in SOURCES for pattern in patterns_of(path)}
    rows = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert len(rows) > 90
    assert [row for row in rows if not any(row.startswith(item) for item in known)] == []


def test_every_row_is_complete():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    assert [row for row in cells if len(row) != 3 or not all(row)] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('raise ValueError("all weights are double; cast them")', ["all weights are double"]),
        ('raise ValueError(f"{a} = {b!r}; allowed is {c}; do it")', ["… = …; allowed is …; do it"]),
        (
            'warnings.warn(f"steps of {a} were skipped. Mind it.", Some)',
            ["steps of … were skipped"],
        ),
        ("raise _Private", []),
        ("raise", []),
        (
            'def f():\n    x = f"the first one of {a}; no"\n    raise ValueError(x)',
            ["the first one of …"],
        ),
        (
            'def f():\n    raise helper()\ndef helper():\n    return ValueError("made by helper")',
            ["made by helper"],
        ),
    ],
)
def test_beginnings_are_read_from_source(source: str, expected: list[str]):
    assert list(patterns_in(source)) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            'TORCH_CHECK_VALUE(f(a, b) == "x", "device = ", name, "; allowed: cpu, "\n "cuda");',
            ["device = …; allowed"],
        ),
        (
            'TORCH_CHECK(false, op.name(), " on half under O1; do ", a ? "b" : "c");',
            ["… on half under O1"],
        ),
        (
            'TORCH_CHECK_WITH(OutOfMemoryError, false, "memory of ", device, " is used up");',
            ["memory of … is used up"],
        ),
        ('TORCH_WARN("operator ", name, " runs on the CPU; why");', ["operator … runs on the CPU"]),
        ("int x = f(1);", []),
    ],
)
def test_beginnings_are_read_from_cpp(source: str, expected: list[str]):
    assert list(patterns_in_cpp(source)) == expected


def patterns_of(path: Path) -> Iterator[str]:
    read = patterns_in if path.suffix == ".py" else patterns_in_cpp
    yield from read(path.read_text())


def patterns_in_cpp(source: str) -> Iterator[str]:
    for macro, call in re.findall(r"(TORCH_(?:CHECK|WARN)\w*)\((.*?)\);", source, re.DOTALL):
        # Neighbouring literals are one.
        text = re.sub(r'"\s+"', "", call)
        parts = re.findall(r'(?:"(?:\\.|[^"\\])*"|\((?:[^()]|\([^()]*\))*\)|[^,"(])+', text)
        # The type of the exception, and the condition.
        message = parts[("CHECK" in macro) + ("WITH" in macro) :]
        literal = [re.fullmatch(r'\s*"(.*)"\s*', part, re.DOTALL) for part in message]
        yield beginning("".join(match[1] if match else "…" for match in literal))


def patterns_in(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    helpers: Scope = {
        node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    }
    for function in [tree, *helpers.values()]:
        scope = {**helpers, **assignments_in(function)}
        for node in own_nodes(function):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                yield from map(beginning, messages_of(node.exc, scope))
            elif isinstance(node, ast.Call) and name_of(node.func) in WARNING_CALLS:
                yield from map(beginning, messages_of(node, scope))
            elif isinstance(node, ast.Call) and name_of(node.func) in PRINTING_CALLS:
                yield from map(beginning, filter(ALARM.match, messages_of(node, scope)))


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions in it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef):
            yield child
            yield from own_nodes(child)


def assignments_in(function: ast.AST) -> Scope:
    return {
        target.id: node.value
        for node in own_nodes(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def messages_of(call: ast.Call, scope: Scope) -> Iterator[str]:
    """The message of an exception or a warning, or those of the helper that makes it."""
    helper = scope.get(name_of(call.func))
    if isinstance(helper, ast.FunctionDef):
        yield from messages_in(helper, scope)
    elif call.args:
        yield from texts_of(call.args[0], scope)


def messages_in(helper: ast.FunctionDef, scope: Scope) -> Iterator[str]:
    scope = {**scope, **assignments_in(helper)}
    for node in own_nodes(helper):
        if isinstance(node, ast.Return) and node.value is not None:
            value = node.value
            if isinstance(value, ast.Call):
                yield from messages_of(value, scope)
            else:
                yield from texts_of(value, scope)


def texts_of(node: ast.AST, scope: Scope) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(next(texts_of(part, {}), "…") for part in node.values)
    elif isinstance(node, ast.BinOp):
        left = next(texts_of(node.left, scope), "…")
        yield left + next(texts_of(node.right, scope), "…")
    elif isinstance(node, ast.IfExp):
        yield from texts_of(node.body, scope)
        yield from texts_of(node.orelse, scope)
    elif isinstance(node, ast.Call):
        yield from messages_of(node, scope)
    elif isinstance(node, ast.Name) and not isinstance(scope.get(node.id), ast.FunctionDef | None):
        yield from texts_of(scope[node.id], scope)


def name_of(function: ast.expr) -> str:
    return ast.unparse(function).rpartition(".")[2]


def beginning(message: str) -> str:
    """The first clauses of a message, as many as it takes to recognise it."""
    text = " ".join(message.split())
    for end in re.finditer(r"; |\. |: |$", text):
        start = text[: end.start()]
        if len(re.findall(r"[^\W\d_]", start)) >= FEWEST_LETTERS:
            return start.rstrip(".")
    return text.rstrip(".")

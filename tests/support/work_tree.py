"""Tests of what git knows: they need a work tree, which a source distribution is not."""

import os
from pathlib import Path

import pytest


def require_work_tree(root: Path) -> None:
    """Skip the test outside a git work tree; fail where CI runs it, which always has one.

    Args:
        root: Top-level folder of the sources.
    """
    if (root / ".git").exists():
        return
    if os.environ.get("CI", "") not in {"", "0", "false"}:
        pytest.fail(f"{root} is no git work tree; CI runs the tests of a clone")
    pytest.skip("not a git work tree")

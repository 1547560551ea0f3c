import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_seed_of_other_tests(monkeypatch):
    """``seed_everything`` leaves its seed in the environment, where a warm-up reads it."""
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)


@pytest.fixture(scope="session")
def case():
    """The module ``warmup_case``; its file is also run as a script."""
    path = Path(__file__).with_name("warmup_case.py")
    spec = importlib.util.spec_from_file_location("warmup_case", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["warmup_case"] = module
    spec.loader.exec_module(module)
    return module

import os
import re
import subprocess
import sys

import pytest
from support.kernels import requires_kernels

from lightning_mp.kernels import self_check
from lightning_mp.kernels.capability import describe_kernels


def test_every_group_says_what_runs_and_why():
    statuses = describe_kernels(check=True)
    assert statuses
    assert all(all(status) for status in statuses)


@pytest.mark.slow
def test_reference_is_active_without_a_native_library():
    script = "from lightning_mp.kernels.capability import *; print(describe_kernels())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "LIGHTNING_MP_NO_NATIVE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "reference (torch)" in done.stdout
    assert "LIGHTNING_MP_NO_NATIVE = '1'" in done.stdout


@requires_kernels
def test_native_kernels_say_what_they_are():
    (status,) = describe_kernels(check=True)
    assert status.implementation == "C++ kernels"
    assert re.search(r"; (base|avx2|avx512); \d+ threads; self-check: passed$", status.reason)


@requires_kernels
def test_self_check_finds_wrong_kernels(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(self_check, "adam_step_", lambda *lists, **settings: None)
    assert "FAILED, weights differ" in self_check.check_kernels()

import os
import re
import subprocess
import sys

import pytest
import torch
from support.kernels import requires_kernels

from lightning_mp.kernels import capability, self_check
from lightning_mp.kernels.capability import describe_kernels
from lightning_mp.kernels.library import load_kernels


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
    status, _ = describe_kernels(check=True)
    assert status.implementation == "C++ kernels"
    assert re.search(r"; (base|avx2|avx512); \d+ threads; self-check: passed$", status.reason)


@requires_kernels
@pytest.mark.parametrize(
    ("architectures", "cuda", "implementation", "reason"),
    [
        ("", "13.0", "reference (torch)", "no nvcc"),
        ("sm_90", None, "none", "no CUDA"),
        (
            "sm_80, sm_90",
            "13.0",
            "CUDA kernels",
            "sm_80, sm_90; so far tested on CPUs",
        ),
    ],
)
def test_kernels_for_gpus_say_what_they_are(
    monkeypatch: pytest.MonkeyPatch,
    architectures: str,
    cuda: str | None,
    implementation: str,
    reason: str,
):
    library = load_kernels()._replace(gpu_architectures=architectures)
    monkeypatch.setattr(capability, "load_kernels", lambda: library)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    _, status = describe_kernels()
    assert status.operations == "fused steps on cuda"
    assert status.implementation == implementation
    assert reason in status.reason


@requires_kernels
def test_self_check_finds_wrong_kernels(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(self_check, "adam_step_", lambda *lists, **settings: None)
    assert "FAILED, weights differ" in self_check.check_kernels()

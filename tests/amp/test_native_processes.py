"""Native casts over several processes, and over torch's own database of operators."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.native import native_casts_removed, requires_native  # noqa: F401
from torch import Tensor

from lightning_mp.amp.native_casts import NativeCasts

pytestmark = [requires_native, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("native_script.py")


def run_script(repo_root: Path, path: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    subprocess.run(
        [sys.executable, "-W", "ignore", SCRIPT, *arguments, path],
        check=True,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(repo_root), str(repo_root / "tests")]),
            **environment,
        },
    )
    return torch.load(path, weights_only=False)


def test_autocast_computes_the_same_bits_with_and_without_the_kernels(repo_root, tmp_path):
    without = run_script(repo_root, tmp_path / "without.pt", "stock")
    with_kernels = run_script(repo_root, tmp_path / "with.pt", "stock", "native")
    assert without.keys() == with_kernels.keys()
    num_tensors = 0
    for key, values in without.items():
        for value, other in zip(values, with_kernels[key], strict=True):
            if isinstance(value, Tensor):
                num_tensors += 1
                torch.testing.assert_close(other, value, rtol=0, atol=0, equal_nan=True, msg=key)
            else:
                assert value == other, key
    assert num_tensors > 2000


def test_the_disk_cache_keeps_policies_apart(repo_root, tmp_path):
    environment = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
    }
    runs = [
        run_script(repo_root, tmp_path / f"{index}.pt", "cache", *options, **environment)
        for index, options in enumerate([(), ("operator",), (), ("operator",)])
    ]
    assert [run["dtype"] for run in runs] == [torch.bfloat16, torch.float32] * 2
    assert [run["hits"] for run in runs] == [0, 0, 1, 1]
    assert [run["misses"] for run in runs] == [1, 1, 0, 0]


def failure(op: Any, sample: Any, region: Any) -> str | None:
    torch.manual_seed(7)
    sample = sample.transform(lambda x: x.clone() if isinstance(x, Tensor) else x)
    try:
        with region, torch.no_grad():
            op.op(sample.input, *sample.args, **sample.kwargs)
    except Exception as error:  # any error is a finding, whatever its type
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_nothing_fails_that_runs_under_torch_autocast(half):
    from torch.testing._internal.common_methods_invocations import op_db

    casts = NativeCasts(half, ("cpu",))
    num_samples, failures = 0, {}
    for op in op_db:
        for dtype in (half, torch.float32):
            if not op.supports_dtype(dtype, "cpu"):
                continue
            for sample in list(op.sample_inputs("cpu", dtype))[:3]:
                num_samples += 1
                found = failure(op, sample, casts.context())
                if found and not failure(op, sample, torch.autocast("cpu", dtype=half)):
                    failures[f"{op.name} {op.variant_test_name} {dtype}"] = found
    assert failures == {}
    assert num_samples > 2000

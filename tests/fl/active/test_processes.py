"""What only a fresh process can show: before and after the activation, and refusals of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

UNTOUCHED = """
import torch, lightning_mp, lightning_mp.fl
assert not lightning_mp.fl.is_active()
assert torch._C._get_privateuse1_backend_name() == "privateuseone"
assert torch.accelerator.current_accelerator() is None or torch.cuda.is_available()
assert not hasattr(torch, "fl") and not hasattr(torch.Tensor, "fl")
try:
    torch.device("fl:0")
except RuntimeError as error:
    assert "fl" in str(error)
else:
    raise AssertionError("a device type fl before the activation")
"""

DEFAULTS = """
import torch
torch.manual_seed(7)
expected = torch.rand(3)
x = torch.ones(2, requires_grad=True)
x.sum().backward()  # starts autograd before fl is there
torch.manual_seed(7)
import lightning_mp.fl
assert str(lightning_mp.fl.device(0)) == "fl:0"
assert torch.equal(torch.rand(3, device="fl").cpu(), expected)
assert torch.rand(1, 4).to("fl:0").device.type == "fl"
assert torch.get_device_module("fl") is torch.fl
assert torch.accelerator.current_accelerator().type == "fl"
w = torch.ones(2, 2, device="fl", requires_grad=True)
(w @ w).sum().backward()
assert w.grad.tolist() == [[4.0, 4.0], [4.0, 4.0]]
"""

RENAMED = """
import torch, lightning_mp.fl
torch.utils.rename_privateuse1_backend("other")
try:
    lightning_mp.fl.activate()
except RuntimeError as error:
    assert "'other' has taken it; start a process that does not import that plugin" in str(error)
else:
    raise AssertionError("activated beside another plugin")
assert not lightning_mp.fl.is_active()
assert torch.ones(2).sum().item() == 2
"""

REFUSED_SPECS = """
import dataclasses, torch, lightning_mp.fl as fl
spec = fl.DeviceSpec(index=0, vendor="cpu", native_type="cpu", native_index=0, name="a", uid="b")
try:
    fl.activate([spec, dataclasses.replace(spec, index=99)])
except ValueError as error:
    assert "index of fl:99 = 99" in str(error)
else:
    raise AssertionError("a wrong index passed")
assert not fl.is_active()
fl.activate([spec])
assert torch.fl.device_ids() == (0,)
"""

CONFIGURED = """
import os, pathlib, torch, lightning_mp.fl as fl
from lightning_mp.fl.routes import route
path = pathlib.Path(os.environ["HOME"], "fl.yaml")
os.environ["TORCH_FL_CONFIG"] = str(path)
path.write_text("devices: [{type: cuda}, {type: cpu}]")
if not torch.cuda.is_available():
    try:
        fl.activate()
    except RuntimeError as error:
        assert "fl device = cuda" in str(error), error
    else:
        raise AssertionError("activated without a device of the config")
    assert not fl.is_active()
path.write_text(
    "devices: [{type: cpu}, {type: sim, unsupported_operators: [aten::tril]}]\\n"
    "fallback: {deny: [aten::tril.out]}"
)
import torch_fl
assert [spec.vendor for spec in fl.active_specs()] == ["cpu", "sim"]
assert torch_fl.active_specs() == fl.active_specs()
assert route("aten::tril", torch.float32, 1) == "cpu_fallback"
assert route("aten::tril.out", torch.float32, 1) == "refused"
"""

NATIVE_LIBRARY_MISSING = """
import torch, lightning_mp
try:
    lightning_mp.fl.activate()
except RuntimeError as error:
    assert "device type fl = not available; LIGHTNING_MP_NO_NATIVE = '1'" in str(error)
else:
    raise AssertionError("activated without a library")
"""

FORK = """
import os, torch, lightning_mp.fl as fl
x = torch.ones(4, device=fl.device(0))
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, str((x * 2).sum().item()).encode())
    os._exit(0)
os.wait()
assert os.read(reader, 99) == b"8.0"
assert (x * 3).sum().item() == 12
"""


@pytest.mark.parametrize(
    ("script", "environment"),
    [
        pytest.param(UNTOUCHED, {}, id="import changes nothing"),
        pytest.param(DEFAULTS, {}, id="one call is enough"),
        pytest.param(RENAMED, {}, id="beside another plugin"),
        pytest.param(REFUSED_SPECS, {}, id="refused as a whole"),
        pytest.param(CONFIGURED, {}, id="devices of the config"),
        pytest.param(NATIVE_LIBRARY_MISSING, {"LIGHTNING_MP_NO_NATIVE": "1"}, id="no library"),
        pytest.param(FORK, {}, id="fork"),
    ],
)
def test_fresh_process(script: str, environment: dict[str, str], repo_root: Path, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=repo_root, capture_output=True,
        text=True, env={**os.environ, "HOME": str(tmp_path), **environment}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

"""What the installation of native casts changes in the process, and takes back."""

import pytest
import torch
import torch.compiler.config as compiler_config
from support.native import native_casts_removed, requires_native  # noqa: F401
from torch.optim import optimizer as optimizer_module
from torch.utils.checkpoint import DefaultDeviceType

from lightning_mp.amp.dispatcher_ops import dispatcher_ops
from lightning_mp.amp.native_casts import NativeCasts
from lightning_mp.amp.native_installation import INSTALLATION
from lightning_mp.amp.native_library import load_native_library
from lightning_mp.amp.op_lists import Policy

pytestmark = requires_native


def cpu_casts() -> NativeCasts:
    return NativeCasts(torch.bfloat16, ("cpu",))


def test_a_custom_operator_with_lists_and_keyword_arguments():
    library = torch.library.Library("lightning_mp_test", "DEF")
    library.define("total(Tensor a, Tensor[] b, Tensor?[] c, *, Tensor? d=None) -> Tensor")

    def total(a, b, c, d=None):
        assert len({t.dtype for t in (a, *b, c[1], d)}) == 1
        return a + sum(b) + c[1] + d

    library.impl("total", total, "CompositeExplicitAutograd")
    x = torch.rand(3).bfloat16()
    casts = cpu_casts()
    tag = compiler_config.cache_key_tag
    assert INSTALLATION.register("lightning_mp_test::total", Policy.FP32) == {"cpu": "ours"}
    assert compiler_config.cache_key_tag != tag
    call = torch.ops.lightning_mp_test.total
    with casts.context():
        assert call(x, [x, x.float()], [None, x], d=x).dtype is torch.float32
    assert call(x, [x, x], [None, x], d=x).dtype is torch.bfloat16
    INSTALLATION.register("lightning_mp_test::total", Policy.PROMOTE)
    with casts.context():
        assert call(x, [x, x.float()], [None, x], d=x).dtype is torch.float32
        assert call(x, [x, x], [None, x], d=x).dtype is torch.bfloat16


def test_registering_says_what_stays_with_torch_and_what_is_unknown():
    cpu_casts()
    assert INSTALLATION.register("aten::sinc", Policy.FP32) == {"cpu": "ours"}
    assert INSTALLATION.register("aten::linear.default", Policy.FP32) == {"cpu": "taken"}
    with pytest.raises(ValueError, match=r"op = 'aten::no_such'; allowed: a registered operator"):
        INSTALLATION.register("aten::no_such", Policy.FP32)
    INSTALLATION.uninstall()


def test_an_overload_that_torch_casts_leaves_the_others_to_the_user():
    library, _ = load_native_library()
    cpu_casts()
    # torch's own autocast has the first overload of the two.
    op = "aten::fake_quantize_per_tensor_affine"
    assert INSTALLATION.register(op, Policy.FP32) == {"cpu": "taken"}
    assert ("cpu", op, "tensor_qparams", "fp32") in library.table()


def test_policies_registered_before_the_first_use_count():
    INSTALLATION.uninstall()
    assert INSTALLATION.register("aten::sinc", Policy.FP32) == {}
    x = torch.rand(3).bfloat16()
    with cpu_casts().context():
        assert torch.sinc(x).dtype is torch.float32
    INSTALLATION.uninstall()
    with cpu_casts().context():
        assert torch.sinc(x).dtype is torch.bfloat16


def test_process_wide_changes_are_made_once_and_taken_back(monkeypatch):
    INSTALLATION.uninstall()
    monkeypatch.setattr(DefaultDeviceType, "_default_device_type", "cpu")
    num_hooks = len(optimizer_module._global_optimizer_post_hooks)
    library, _ = load_native_library()
    assert library is not None

    with compiler_config.patch(cache_key_tag="mine"):
        for _ in range(2):
            cpu_casts()
            assert len(optimizer_module._global_optimizer_post_hooks) == num_hooks + 1
            assert compiler_config.cache_key_tag.startswith("mine;lightning_mp._O1=")
            assert DefaultDeviceType.get_device_type() == "cuda"
            assert {row[0] for row in library.table()} == {"cpu"}
        assert len(library.table()) > len(dispatcher_ops()) / 2

        INSTALLATION.uninstall()
        assert len(optimizer_module._global_optimizer_post_hooks) == num_hooks
        assert compiler_config.cache_key_tag == "mine"
        assert DefaultDeviceType.get_device_type() == "cpu"
        assert library.table() == []


def test_another_default_device_of_checkpointing_is_kept(monkeypatch):
    INSTALLATION.uninstall()
    monkeypatch.setattr(DefaultDeviceType, "_default_device_type", "xpu")
    casts = cpu_casts()
    with casts.context():
        assert torch.get_autocast_dtype("xpu") is torch.float64
        assert torch.exp(torch.rand(3).bfloat16()).dtype is torch.float32
    INSTALLATION.uninstall()
    assert DefaultDeviceType.get_device_type() == "xpu"

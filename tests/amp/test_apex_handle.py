import copy
import threading

import pytest
import torch
from support.engine import Mlp, make_batches, train_plain
from support.tolerances import HALF_TRAINING
from torch.nn import functional as F
from torch.optim.optimizer import _global_optimizer_post_hooks

from lightning_mp import amp
from lightning_mp.amp._amp_state import _amp_state
from lightning_mp.amp.function_casts import FunctionCasts


def make_sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_casts_are_on_until_deactivated(dtype):
    amp.set_half_dtype(dtype)
    weight = torch.randn(3, 3)
    handle = amp.init()
    assert handle.is_active()
    assert _amp_state.handle is handle
    assert F.linear(weight, weight).dtype == dtype
    with handle._disable_casts():
        assert F.linear(weight, weight).dtype == torch.float32
    handle._deactivate()
    assert not handle.is_active()
    assert F.linear(weight, weight).dtype == torch.float32


def test_a_second_call_replaces_the_first():
    first = amp.init()
    second = amp.init(allow_banned=True)
    assert second.is_active()
    second._deactivate()
    assert not first.is_active()
    assert F.linear(torch.ones(3, 3), torch.ones(3, 3)).dtype == torch.float32


def test_a_weight_that_was_written_to_is_cast_anew():
    amp.set_half_dtype(torch.bfloat16)
    model, x = torch.nn.Linear(3, 3), torch.ones(5, 3)
    handle = amp.init()
    model(x)
    model.load_state_dict({name: value * 0 for name, value in model.state_dict().items()})
    assert (model(x) == 0).all()
    for weight in model.parameters():
        weight.data = weight.data + 1
    assert (model(x) == 4).all()
    handle._deactivate()
    assert torch.is_autocast_cache_enabled()


def test_casts_end_in_the_thread_they_began_in():
    events = [threading.Event(), threading.Event()]
    seen = []
    FunctionCasts(torch.float16)  # installs the kernels
    hooks = list(_global_optimizer_post_hooks)

    def work():
        amp.init()
        events[0].set()
        assert events[1].wait(timeout=60)
        seen.append(F.linear(torch.ones(3, 3), torch.ones(3, 3)).dtype)

    thread = threading.Thread(target=work, name="worker")
    thread.start()
    assert events[0].wait(timeout=60)
    for call in (_amp_state.handle._deactivate, amp.init):
        with pytest.raises(RuntimeError, match=r"in the thread 'worker'; .*_deactivate\(\) there"):
            call()
    events[1].set()
    thread.join()
    assert seen == [torch.float16]
    handle = amp.init()
    assert handle.is_active()
    handle._deactivate()
    assert list(_global_optimizer_post_hooks) == hooks
    assert not torch._C._is_any_autocast_enabled()


def test_casts_end_with_their_handle_whatever_is_initialised_meanwhile():
    first = amp.init()
    amp.initialize(Mlp(), opt_level="O1", verbosity=0)
    assert _amp_state.handle is first
    second = amp.init()
    assert _amp_state.handle is second
    second._deactivate()
    assert F.linear(torch.ones(3, 3), torch.ones(3, 3)).dtype == torch.float32
    first._deactivate()
    amp.initialize(Mlp(), opt_level="O1", verbosity=0)
    assert _amp_state.handle not in (first, second)


def test_casts_are_ended_where_they_are_on():
    handle = amp.init()
    with (
        amp.disable_casts(),
        pytest.raises(RuntimeError, match=r"handle\._deactivate\(\) where its casts are not on"),
    ):
        handle._deactivate()
    assert handle.is_active()
    handle._deactivate()
    handle._deactivate()
    assert F.linear(torch.ones(3, 3), torch.ones(3, 3)).dtype == torch.float32


def test_what_is_wrapped_is_an_optimizer():
    handle = amp.init(loss_scale=1.0)
    model = Mlp()
    with pytest.raises(TypeError, match="Mlp in place of an optimizer"):
        handle.wrap_optimizer(model)
    with pytest.raises(ValueError, match="num_losses = 0; allowed"):
        handle.wrap_optimizer(make_sgd(model), num_loss=0)
    with pytest.raises(TypeError, match="loss = float"), handle.scale_loss(1.0, make_sgd(model)):
        pass
    handle._deactivate()
    assert copy.copy(handle.wrap_optimizer(make_sgd(model))).param_groups


def test_a_disabled_handle_does_nothing():
    handle = amp.init(enabled=False)
    model = Mlp()
    optimizer = handle.wrap_optimizer(make_sgd(model))
    loss = model(torch.ones(5, 13)).sum()
    with optimizer.scale_loss(loss) as same:
        assert same is loss
    assert not handle.is_active()
    assert not handle.has_cache
    assert F.linear(torch.ones(3, 3), torch.ones(3, 3)).dtype == torch.float32


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_loop_trains_as_in_fp32(is_wrapped):
    amp.set_half_dtype(torch.bfloat16)
    reference, model = Mlp(), Mlp()
    expected = train_plain(reference, make_sgd(reference), make_batches(7))
    handle = amp.init(loss_scale=128.0)
    optimizer = make_sgd(model)
    wrapped = handle.wrap_optimizer(optimizer) if is_wrapped else None
    losses = []
    for inputs, targets in make_batches(7):
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        window = wrapped.scale_loss(loss) if wrapped else handle.scale_loss(loss, optimizer)
        with window as scaled_loss:
            scaled_loss.backward()
        (wrapped or optimizer).step()
        losses.append(float(loss.detach()))
    torch.testing.assert_close(losses, expected, **HALF_TRAINING)


def test_an_overflow_skips_one_step_and_moves_one_scale():
    handle = amp.init()
    model = Mlp()
    optimizer = handle.wrap_optimizer(make_sgd(model), num_loss=2)
    before = model.last.weight.detach().clone()
    for factor in (1.0, float("inf")):
        with optimizer.scale_loss(model(torch.ones(5, 13)).float().mean() * factor) as scaled_loss:
            scaled_loss.backward()
    with (
        pytest.raises(RuntimeError, match="scale_loss was called 3 times since the last step"),
        optimizer.scale_loss(model(torch.ones(5, 13)).sum()),
    ):
        pass
    optimizer.step()
    assert torch.equal(before, model.last.weight)
    scales = [scaler.loss_scale() for scaler in optimizer._session.loss_scalers]
    assert scales == [2.0**16, 2.0**15]
    assert optimizer.param_groups is optimizer._optimizer.param_groups

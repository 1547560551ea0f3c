"""Hooks of a module are those of its replicas, too: data parallelism within one process."""

import threading

import pytest
import torch
from support.o1_implementations import IMPLEMENTATIONS
from torch import nn

from lightning_mp import amp
from lightning_mp.amp.function_cast_hooks import FunctionCastHooks
from lightning_mp.amp.function_casts import FunctionCasts, casts_are_active

BF16, FP32 = torch.bfloat16, torch.float32


class Net(nn.Module):
    """Notes the dtype of its layer's output; all forwards of a round are in progress at once."""

    def __init__(self, barrier):
        super().__init__()
        torch.manual_seed(3)
        self.layer, self.seen, self.barrier = nn.Linear(7, 5), [], barrier

    def forward(self, x):
        hidden = self.layer(x)
        self.seen.append(hidden.dtype)
        self.barrier.wait(timeout=60)
        return hidden


def replicas_of(net, count):
    """Make what nn.DataParallel makes, with the weights shared instead of broadcast."""
    replicas = []
    for _ in range(count):
        replica = net._replicate_for_data_parallel()
        replica.layer = net.layer._replicate_for_data_parallel()
        for name, weight in net.layer.named_parameters():
            setattr(replica.layer, name, weight * 1)
        replicas.append(replica)
    return replicas


def run(modules, x):
    outputs, threads = {}, []
    for index, (module, part) in enumerate(zip(modules, x.chunk(len(modules)), strict=True)):

        def work(index=index, module=module, part=part):
            outputs[index] = (module(part), casts_are_active())

        threads.append(threading.Thread(target=work))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert not any(is_active for _, is_active in outputs.values())
    return torch.cat([outputs[index][0] for index in range(len(modules))])


def o1(net, implementation):
    casts = FunctionCasts(BF16, implementation=implementation, device_types=("cpu",))
    FunctionCastHooks(net, casts)


def o2(net, _):
    amp.initialize(net, opt_level="O2", half_dtype=BF16, verbosity=0)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("set_up", [o1, o2])
def test_replicas_run_as_the_module_does(set_up, implementation):
    barrier = threading.Barrier(1)
    net = Net(barrier)
    set_up(net, implementation)
    x = torch.randn(6, 7)
    expected = net(x)
    assert net.seen == [BF16]
    net.barrier = threading.Barrier(3)
    output = run(replicas_of(net, 3), x)
    assert net.seen == [BF16] * 4
    assert output.dtype == FP32
    torch.testing.assert_close(output, expected, rtol=1e-2, atol=0)
    output.sum().backward()
    assert {weight.grad.shape for weight in net.parameters()} == {(5, 7), (5,)}

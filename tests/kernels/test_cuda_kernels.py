"""The kernels on a GPU against those of the CPU. They have not run on one so far."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.shim_checks import OPTIONS, STEPS
from support.shim_cross_entropy_checks import NUM_CLASSES
from support.shim_steps import ROLES, SIZES, StepInputs, step_inputs
from torch import Tensor

from lightning_mp.kernels.library import load_kernels

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.skipif(
        not load_kernels().gpu_architectures, reason="built without kernels for GPUs"
    ),
]


@pytest.fixture(autouse=True)
def nothing_waits_for_the_device() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def on_gpu(value: Any) -> Any:
    return value.cuda() if isinstance(value, Tensor) else value


def on_cpu(tensor: Tensor) -> Tensor:
    """Copy to the host, which is what a test may wait for."""
    torch.cuda.set_sync_debug_mode("default")
    copy = tensor.cpu()
    torch.cuda.set_sync_debug_mode("error")
    return copy


def assert_close(found: StepInputs, expected: StepInputs) -> None:
    for role in (*ROLES, "steps"):
        for a, b in zip(getattr(found, role), getattr(expected, role), strict=True):
            a, b = on_cpu(a), b.cpu()
            if a.dtype == torch.int16:
                # A difference of one unit of FP32 in the master.
                assert ((a.int() - b.int()).abs() <= 2).float().mean() > 0.999
            else:
                # Powers on the device may differ in their last bit, and so may all that follows.
                torch.testing.assert_close(
                    a, b, rtol=1e-2 if a.element_size() == 2 else 1e-5, atol=1e-7
                )


@pytest.mark.parametrize("options", [{}, OPTIONS])
@pytest.mark.parametrize("name", STEPS)
def test_steps_are_those_of_the_cpu(name: str, options: dict[str, bool]) -> None:
    function, settings = STEPS[name]
    expected = step_inputs(SIZES * 2)
    found = expected.map(lambda _, tensor: tensor.cuda())
    # The defaults of a step are tensors on the CPU.
    scalars = {"factor": torch.tensor([0.37]), "found_inf": torch.zeros(1)}
    settings = scalars | settings | options

    function(torch.ops.lightning_mp, expected, **settings)
    function(
        torch.ops.lightning_mp, found, **{key: on_gpu(value) for key, value in settings.items()}
    )

    assert_close(found, expected)


def statistics(gradients: list[Tensor]) -> list[Tensor]:
    results = list(torch.zeros(3, 1, device=gradients[0].device).unbind())
    torch.ops.lightning_mp.gradient_stats_(gradients, None, 0.5, *results)
    return results


def test_statistics_are_those_of_the_cpu_bit_for_bit() -> None:
    gradients = step_inputs((*SIZES, 200_003)).gradients

    found = statistics([gradient.cuda() for gradient in gradients])

    for a, b in zip(found, statistics(gradients), strict=True):
        assert torch.equal(on_cpu(a), b)


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("num_classes", NUM_CLASSES)
def test_cross_entropy_is_that_of_the_cpu_bit_for_bit(
    num_classes: int, label_smoothing: float, is_weighted: bool
) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        logits = torch.randn(6, num_classes).to(dtype)
        target = torch.randint(0, num_classes, (6,))
        target[::4] = -100
        weight = torch.rand(num_classes) if is_weighted else None
        gradient = torch.linspace(-1.0, 2.0**14, 6)
        arguments = [gradient, logits, target, weight]
        found = cross_entropy(*map(on_gpu, arguments), label_smoothing)

        for a, b in zip(found, cross_entropy(*arguments, label_smoothing), strict=True):
            assert torch.equal(on_cpu(a), b)


def cross_entropy(
    gradient: Tensor, logits: Tensor, target: Tensor, weight: Tensor | None, smoothing: float
) -> list[Tensor]:
    settings = (weight, -100, smoothing)
    losses, statistics = torch.ops.lightning_mp.cross_entropy_forward(logits, target, *settings)
    result = torch.ops.lightning_mp.cross_entropy_backward(
        gradient, logits, target, statistics, *settings
    )
    return [losses, statistics, result]


def test_a_captured_step_keeps_its_table() -> None:
    gradients = [gradient.cuda() for gradient in step_inputs(SIZES).gradients]
    expected = [on_cpu(item) for item in statistics(gradients)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = statistics(gradients)
    for size in range(40, 80):
        statistics([torch.ones(size, device="cuda")])
    graph.replay()

    for a, b in zip(found, expected, strict=True):
        assert torch.equal(on_cpu(a), b)

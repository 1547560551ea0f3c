"""The cross-entropy of half logits against torch's in double precision."""

import math

import pytest
import torch
import torch.nn.functional as F
from support.kernels import HALF, both_implementations, operation, same_bits
from torch import Tensor

from lightning_mp.kernels.cross_entropy import cross_entropy_backward, cross_entropy_forward

IGNORED = -100
# Below, at and above the sizes of vectors, lanes and blocks of sums.
NUM_CLASSES = (1, 7, 64, 103, 1024, 1031, 5003)
INFINITY, NAN = float("inf"), float("nan")


def sample(
    num_classes: int, dtype: torch.dtype = torch.bfloat16, *, factor: float = 4.0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(num_classes)
    logits = (torch.randn(13, num_classes, generator=generator) * factor).to(dtype)
    target = torch.randint(0, num_classes, (13,), generator=generator)
    target[::5] = IGNORED
    return logits, target


def run(
    implementation: str,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    gradient: Tensor | None = None,
    ignore_index: int = IGNORED,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return losses and the gradient of the logits."""
    settings = (weight, ignore_index, label_smoothing)
    forward = operation("cross_entropy_forward", implementation)
    backward = operation("cross_entropy_backward", implementation)
    losses, statistics = forward(logits, target, *settings)
    if gradient is None:
        gradient = torch.linspace(-2.0, 300.0, len(target))
    return losses, backward(gradient, logits, target, statistics, *settings)


def expected_results(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    gradient: Tensor | None = None,
    **settings: float,
) -> tuple[Tensor, Tensor]:
    logits = logits.double().requires_grad_()
    weight = None if weight is None else weight.double()
    losses = F.cross_entropy(logits, target, weight, reduction="none", **settings)
    if gradient is None:
        gradient = torch.linspace(-2.0, 300.0, len(target))
    (result,) = torch.autograd.grad(losses, logits, gradient.double())
    return losses.detach(), result


def assert_gradient(found: Tensor, expected: Tensor, gradient: float = 300.0) -> None:
    """Half a unit in the last place of half, and some of FP32 in probabilities."""
    # A subnormal number of float16 has fewer bits.
    atol = gradient * 1e-6 + (2.0**-25 if found.dtype == torch.float16 else 0.0)
    rtol = torch.finfo(found.dtype).eps * 0.51
    torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=atol, equal_nan=True)


@both_implementations
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("num_classes", NUM_CLASSES)
def test_results_are_those_of_double_precision(
    num_classes: int,
    label_smoothing: float,
    is_weighted: bool,
    dtype: torch.dtype,
    implementation: str,
):
    logits, target = sample(num_classes, dtype)
    weight = torch.rand(num_classes) if is_weighted else None
    losses, result = run(implementation, logits, target, weight, label_smoothing=label_smoothing)
    expected = expected_results(logits, target, weight, label_smoothing=label_smoothing)
    assert losses.dtype == torch.float32
    assert result.dtype == dtype
    torch.testing.assert_close(losses.double(), expected[0], rtol=1e-6, atol=3e-7)
    assert_gradient(result, expected[1])


@both_implementations
@pytest.mark.parametrize("ignore_index", [0, 3, -1, 2**40])
def test_any_target_can_be_ignored(ignore_index: int, implementation: str):
    logits, target = sample(103)
    target[::5] = ignore_index
    target[1] = 3
    losses, result = run(implementation, logits, target, ignore_index=ignore_index)
    expected = expected_results(logits, target, ignore_index=ignore_index)
    torch.testing.assert_close(losses.double(), expected[0], rtol=1e-6, atol=3e-7)
    assert_gradient(result, expected[1])
    is_ignored = target == ignore_index
    assert not losses[is_ignored].any()
    assert not result[is_ignored].any()


@both_implementations
@pytest.mark.parametrize("value", [INFINITY, NAN, -INFINITY])
@pytest.mark.parametrize("position", [0, 70, 102])
@pytest.mark.parametrize("dtype", HALF)
def test_logits_that_are_not_finite(
    dtype: torch.dtype, position: int, value: float, implementation: str
):
    logits, target = sample(103, dtype)
    logits[2, position] = value
    target[2] = 5
    logits[3] = value
    losses, result = run(implementation, logits, target)
    expected = expected_results(logits, target)
    torch.testing.assert_close(losses.double(), expected[0], rtol=1e-6, atol=3e-7, equal_nan=True)
    assert_gradient(result, expected[1])


@both_implementations
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("value", [-INFINITY, NAN])
def test_a_target_that_is_not_finite(value: float, label_smoothing: float, implementation: str):
    logits, target = sample(103)
    logits[2, target[2]] = value
    losses, result = run(implementation, logits, target, label_smoothing=label_smoothing)
    expected = expected_results(logits, target, label_smoothing=label_smoothing)
    torch.testing.assert_close(losses.double(), expected[0], rtol=1e-6, atol=3e-7, equal_nan=True)
    assert_gradient(result, expected[1])


@both_implementations
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_logits_of_ignored_rows_do_not_matter(label_smoothing: float, implementation: str):
    logits, target = sample(103)
    logits[0, 4] = NAN
    logits[5] = INFINITY
    losses, result = run(implementation, logits, target, label_smoothing=label_smoothing)
    assert torch.equal(losses[::5], torch.zeros(3))
    assert not result[::5].any()
    assert losses.isfinite().all()


@both_implementations
@pytest.mark.parametrize("offset", [6e4, -6e4])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_large_logits_keep_all_bits(offset: float, label_smoothing: float, implementation: str):
    # A log-sum-exp near 60,000 has 8 bits behind the point, which is 0.4 % of a probability.
    generator = torch.Generator().manual_seed(3)
    steps = torch.randint(-3, 3, (13, 103), generator=generator) * 32.0
    logits = (steps + offset).half()
    logits[:, :40] = torch.tensor(offset).half()
    target = torch.randint(0, 103, (13,), generator=generator)
    losses, result = run(implementation, logits, target, label_smoothing=label_smoothing)
    expected = expected_results(logits, target, label_smoothing=label_smoothing)
    torch.testing.assert_close(losses.double(), expected[0], rtol=1e-6, atol=3e-7)
    assert_gradient(result, expected[1])


@both_implementations
def test_sure_predictions_have_exact_gradients(implementation: str):
    # probability - 1 is 2e-6: a difference of two numbers in FP32 has 5 bits of it.
    logits = torch.zeros(2, 7).bfloat16()
    logits[:, 3] = 15.0
    gradient = torch.full((2,), 2.0**14)
    target = torch.tensor([3, 3])
    _, result = run(implementation, logits, target, gradient=gradient)
    expected = expected_results(logits, target, gradient=gradient)[1]
    torch.testing.assert_close(result.double(), expected, rtol=0.05, atol=0.0)


@both_implementations
def test_float16_keeps_small_gradients_under_a_loss_scale(implementation: str):
    logits, target = sample(8209, torch.float16, factor=1.0)
    scaled = torch.full((13,), 2.0**14 / 16384)
    _, result = run(implementation, logits, target, gradient=scaled)
    expected = expected_results(logits, target, gradient=scaled)[1]
    is_representable = expected.abs() > 2.0**-25
    assert is_representable.double().mean() > 0.5
    assert (result != 0)[is_representable].all()
    # Made without the scale, most of them would be gone.
    _, unscaled = run(implementation, logits, target, gradient=scaled / 2**14)
    assert (unscaled == 0)[is_representable].double().mean() > 0.5


@both_implementations
def test_layouts(implementation: str):
    logits, target = sample(1031)
    gradient = torch.tensor(0.5)
    expected = run(implementation, logits, target, gradient=gradient.repeat(13))
    wide = torch.full((13, 1040), NAN).bfloat16()
    wide[:, 3:1034] = logits
    spread = torch.stack([target, target], dim=1)[:, 0]
    for layout in (wide[:, 3:1034], logits.t().contiguous().t()):
        found = run(implementation, layout, spread, gradient=gradient.expand(13))
        assert same_bits(found, expected)
        assert found[1].is_contiguous()


@both_implementations
@pytest.mark.parametrize("shape", [(0, 7), (0, 0)])
def test_no_rows(shape: tuple[int, int], implementation: str):
    logits, target = torch.zeros(shape).half(), torch.zeros(0, dtype=torch.int64)
    losses, result = run(implementation, logits, target)
    assert losses.shape == (0,)
    assert result.shape == shape


@both_implementations
@pytest.mark.parametrize("wrong", [7, -1, 2**40])
def test_targets_out_of_bounds_are_refused(wrong: int, implementation: str):
    logits = torch.zeros(3, 7).half()
    good, bad = torch.tensor([0, 1, 2]), torch.tensor([0, IGNORED, wrong])
    statistics = torch.ones(3, 3)
    with pytest.raises(RuntimeError, match=f"{wrong} is out of bounds"):
        run(implementation, logits, bad)
    with pytest.raises(RuntimeError, match=f"{wrong} is out of bounds"):
        operation("cross_entropy_backward", implementation)(
            torch.ones(3), logits, bad, statistics, None, IGNORED, 0.0
        )
    assert run(implementation, logits, good)[0].isfinite().all()


@both_implementations
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logits": torch.zeros(3, 7)}, "logits is float32; bfloat16 or float16 is needed"),
        ({"logits": torch.zeros(7).half()}, r"logits has shape \[7\]; \[rows, classes\]"),
        ({"target": torch.zeros(3)}, "target is float32; int64 is needed"),
        ({"target": torch.zeros(2, dtype=torch.int64)}, r"target has shape \[2\]; \[3\] is needed"),
        ({"weight": torch.zeros(3)}, r"weight has shape \[3\]; \[7\] is needed"),
        ({"weight": torch.zeros(7).half()}, "weight is float16; float32 is needed"),
        ({"label_smoothing": 1.5}, "label_smoothing = 1.5; a number from 0 to 1 is needed"),
        ({"label_smoothing": -0.1}, "label_smoothing = -0.1; a number from 0 to 1"),
        ({"label_smoothing": math.nan}, "label_smoothing = nan; a number from 0 to 1"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict, message: str, implementation: str):
    arguments = {
        "logits": torch.zeros(3, 7).half(),
        "target": torch.zeros(3, dtype=torch.int64),
        "weight": None,
        "ignore_index": IGNORED,
        "label_smoothing": 0.0,
    } | changes
    with pytest.raises(RuntimeError, match=f"cross_entropy_forward: .*{message}"):
        operation("cross_entropy_forward", implementation)(**arguments)


@both_implementations
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gradient": torch.zeros(3).half()}, "gradient is float16; float32 is needed"),
        ({"gradient": torch.zeros(())}, r"gradient has shape \[\]; \[3\] is needed"),
        ({"statistics": torch.zeros(3)}, r"statistics has shape \[3\]; \[3, 3\] is needed"),
    ],
)
def test_what_does_not_fit_backward_is_refused(changes: dict, message: str, implementation: str):
    arguments = {
        "gradient": torch.zeros(3),
        "logits": torch.zeros(3, 7).half(),
        "target": torch.zeros(3, dtype=torch.int64),
        "statistics": torch.zeros(3, 3),
        "weight": None,
        "ignore_index": IGNORED,
        "label_smoothing": 0.0,
    } | changes
    with pytest.raises(RuntimeError, match=f"cross_entropy_backward: .*{message}"):
        operation("cross_entropy_backward", implementation)(**arguments)


def loss_and_gradient(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    losses, statistics = cross_entropy_forward(logits, target, label_smoothing=0.1)
    gradient = torch.ones_like(losses)
    return losses, cross_entropy_backward(gradient, logits, target, statistics, label_smoothing=0.1)


@pytest.mark.parametrize(
    "backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]
)
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_both_compile_as_a_whole(backend: str):
    logits, target = sample(103)
    torch._dynamo.reset()
    compiled = torch.compile(loss_and_gradient, backend=backend, fullgraph=True)
    assert same_bits(compiled(logits, target), loss_and_gradient(logits, target))

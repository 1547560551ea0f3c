"""The half cross-entropy against torch's on floats."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_mp.amp.cross_entropy import cross_entropy_reference, half_cross_entropy

HALF = [torch.float16, torch.bfloat16]
IDS = ["fp16", "bf16"]

# Above the 2**19 elements of one block, with sizes that leave a partial last block.
BLOCKED = {
    "rows": (257, 2053),
    "one_row": (1, 600_011),
    "no_batch": (600_011,),
    "sequence": (3, 1031, 211),
    "image": (3, 13, 131, 127),
    "large_image": (2, 7, 311, 307),
}
SMALL = {"rows": (13, 7), "no_batch": (7,), "sequence": (3, 5, 11), "empty": (0, 7)}


class LargestAllocation(TorchDispatchMode):
    """Records the elements of the largest float32 tensor any operator returns."""

    def __init__(self):
        super().__init__()
        self.num_elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32:
                self.num_elements = max(self.num_elements, tensor.numel())
        return out


def make(shape, dtype, *, num_ignored=3, ignore_index=-100, seed=1):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(shape, generator=generator).mul_(3).to(dtype).requires_grad_()
    num_classes = shape[0] if len(shape) == 1 else shape[1]
    target_shape = () if len(shape) == 1 else (shape[0], *shape[2:])
    target = torch.randint(0, num_classes, target_shape, generator=generator)
    if target.numel() > num_ignored:
        target.view(-1)[:: target.numel() // num_ignored] = ignore_index
    return logits, target


def run(function, logits, target, scale=1.0, **options):
    logits = logits.detach().requires_grad_()
    loss = function(logits, target, **options)
    (grad,) = torch.autograd.grad(loss.sum() * scale, logits)
    return loss.detach(), grad


def assert_same(logits, target, *, scale=1.0, **options):
    loss, grad = run(half_cross_entropy, logits, target, scale=scale, **options)
    # In double precision: torch's sums over 600,000 classes in FP32 are off by some units.
    expected, expected_grad = (
        result.float()
        for result in run(F.cross_entropy, logits.double(), target, scale=scale, **options)
    )
    assert loss.dtype == torch.float32
    assert grad.dtype == logits.dtype
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    info = torch.finfo(logits.dtype)
    # Half a unit in the last place, plus the reference's own FP32 error in p - 1.
    largest = expected_grad.abs().max().item() if grad.numel() else 0.0
    torch.testing.assert_close(
        grad.float(),
        expected_grad,
        rtol=info.eps * 0.51,
        atol=2**-25 + largest * 1e-6 if logits.dtype == torch.float16 else largest * 1e-6,
    )


@pytest.mark.parametrize("dtype", HALF, ids=IDS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", BLOCKED.values(), ids=BLOCKED)
def test_blocks_match_float(shape, reduction, dtype):
    assert_same(*make(shape, dtype), reduction=reduction)


@pytest.mark.parametrize("dtype", HALF, ids=IDS)
@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize("shape", SMALL.values(), ids=SMALL)
def test_small_logits_match_float(shape, reduction, dtype):
    assert_same(*make(shape, dtype), reduction=reduction)


@pytest.mark.parametrize("shape", [(13, 7), BLOCKED["rows"]], ids=["small", "blocked"])
@pytest.mark.parametrize(
    "options",
    [
        {"label_smoothing": 0.1},
        {"weight": "float"},
        {"weight": "half"},
        {"ignore_index": 3},
        {"ignore_index": 0, "reduction": "sum"},
    ],
    ids=str,
)
def test_options_match_float(shape, options):
    logits, target = make(shape, torch.bfloat16, ignore_index=options.get("ignore_index", -100))
    kind = options.get("weight")
    options = {name: value for name, value in options.items() if name != "weight"}
    weight = torch.rand(shape[1]).bfloat16() if kind else None
    half_options = {
        **options,
        "weight": weight.float() if weight is not None and kind == "float" else weight,
    }
    float_options = {**options, "weight": weight if weight is None else weight.float()}
    loss, grad = run(half_cross_entropy, logits, target, **half_options)
    expected, expected_grad = run(F.cross_entropy, logits.float(), target, **float_options)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(grad.float(), expected_grad, rtol=2**-8, atol=1e-9)


@pytest.mark.parametrize("dtype", HALF, ids=IDS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_weighted_rows_match_float(label_smoothing, reduction, dtype):
    logits, target = make(BLOCKED["rows"], dtype)
    weight = torch.linspace(0.5, 1.5, 2053)
    options = {"label_smoothing": label_smoothing, "reduction": reduction}
    loss, grad = run(half_cross_entropy, logits, target, weight=weight, **options)
    expected, expected_grad = run(
        F.cross_entropy, logits.double(), target, weight=weight.double(), **options
    )
    torch.testing.assert_close(loss, expected.float(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        grad.double(), expected_grad, rtol=torch.finfo(dtype).eps * 0.51, atol=2e-6
    )
    with LargestAllocation() as record:
        half_cross_entropy(logits, target, weight, **options).sum().backward()
    assert 0 < record.num_elements <= 2**19


@pytest.mark.parametrize("target_dtype", [torch.float32, torch.bfloat16])
def test_probability_targets_match_float(target_dtype):
    logits, _ = make((257, 2053), torch.bfloat16)
    target = torch.rand(257, 2053).softmax(1).to(target_dtype)
    loss, _ = run(half_cross_entropy, logits, target)
    expected = F.cross_entropy(logits.float(), target.float())
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("options", [{"size_average": False}, {"reduce": False}], ids=str)
@pytest.mark.filterwarnings("ignore:size_average and reduce args will be deprecated")
def test_deprecated_reductions_match_float(options):
    logits, target = make((257, 2053), torch.bfloat16)
    loss, _ = run(half_cross_entropy, logits, target, **options)
    torch.testing.assert_close(loss, F.cross_entropy(logits.float(), target, **options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_full_precision_input_is_left_to_torch(dtype):
    logits, target = make((257, 2053), dtype)
    assert torch.equal(half_cross_entropy(logits, target), F.cross_entropy(logits, target))


@pytest.mark.parametrize("shape", [(13, 7), BLOCKED["rows"], BLOCKED["image"]], ids=str)
def test_all_targets_ignored_is_nan_with_zero_gradient(shape):
    logits, target = make(shape, torch.bfloat16)
    target.fill_(-100)
    loss, grad = run(half_cross_entropy, logits, target)
    assert loss.isnan()
    assert grad.count_nonzero() == 0
    assert run(F.cross_entropy, logits.float(), target)[0].isnan()
    assert run(half_cross_entropy, logits, target, reduction="sum")[0] == 0


def test_masked_classes_do_not_spoil_the_gradient():
    logits, target = make(BLOCKED["rows"], torch.bfloat16)
    with torch.no_grad():
        logits[:, :5] = float("-inf")
    target[target < 5] = 5  # ignored rows too: their -100 is below 5
    target[::7] = -100
    assert_same(logits, target)


@pytest.mark.parametrize("layout", ["transposed", "shifted", "sliced", "channels_last", "expanded"])
def test_memory_layouts(layout):
    generator = torch.Generator().manual_seed(2)

    def randn(*shape):
        return torch.randn(shape, generator=generator).bfloat16()

    logits = {
        "transposed": lambda: randn(5, 131, 1031).transpose(1, 2),
        "shifted": lambda: randn(5, 131, 1031)[:, :-1].transpose(1, 2),
        "sliced": lambda: randn(613, 1031)[:, :1009],
        "channels_last": lambda: randn(3, 13, 131, 127).to(memory_format=torch.channels_last),
        "expanded": lambda: randn(1, 13, 131, 127).expand(3, -1, -1, -1),
    }[layout]()
    target = torch.randint(0, 13, (logits.size(0), *logits.shape[2:]), generator=generator)
    assert_same(logits, target)


def test_fp16_keeps_small_gradients_under_a_loss_scale():
    logits, target = make((263, 8209), torch.float16, num_ignored=1)
    _, grad = run(half_cross_entropy, logits, target, scale=2.0**14)
    _, expected = run(F.cross_entropy, logits.float(), target, scale=2.0**14)
    is_representable = expected.abs() > 2.0**-25
    assert (grad != 0)[is_representable].all()
    _, unscaled = run(half_cross_entropy, logits, target)
    assert (unscaled == 0).float().mean() > 10 * (grad == 0).float().mean()
    assert_same(logits, target, scale=2.0**14)


@pytest.mark.parametrize("shape", [(1031, 2053), (5, 13, 211, 307)], ids=["rows", "image"])
def test_no_float_copy_of_the_logits(shape):
    logits, target = make(shape, torch.bfloat16)
    with LargestAllocation() as record:
        half_cross_entropy(logits, target).backward()
    assert 0 < record.num_elements <= 2**19
    with LargestAllocation() as record:
        cross_entropy_reference(logits, target).backward()
    assert record.num_elements == logits.numel()


def test_no_scalar_leaves_the_device():
    class Syncs(TorchDispatchMode):
        names: list[str] = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(func.name())
            return func(*args, **(kwargs or {}))

    logits, target = make(BLOCKED["rows"], torch.bfloat16)
    with Syncs() as record:
        half_cross_entropy(logits, target).backward()
    assert record.names
    assert not [
        name
        for name in record.names
        if "local_scalar" in name or "nonzero" in name or "item" in name
    ]


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        (BLOCKED["rows"], {}),
        (BLOCKED["rows"], {"label_smoothing": 0.1, "weight": torch.linspace(0.5, 1.5, 2053)}),
        (BLOCKED["image"], {}),
    ],
    ids=["rows", "rows with options", "image"],
)
def test_double_backward_matches_float(shape, options):
    logits, target = make(shape, torch.bfloat16)

    def penalty(function, logits):
        logits = logits.detach().requires_grad_()
        loss = function(logits, target, reduction="sum", **options)
        (grad,) = torch.autograd.grad(loss, logits, create_graph=True)
        return torch.autograd.grad(grad.float().square().sum(), logits)[0].float()

    expected = penalty(F.cross_entropy, logits.float())
    torch.testing.assert_close(
        penalty(half_cross_entropy, logits), expected, rtol=2**-6, atol=2**-8
    )


@pytest.mark.parametrize(
    ("logits", "target", "error"),
    [
        ((257, 2053), torch.zeros(7, dtype=torch.long), ValueError),
        ((257, 2053), torch.full((257,), 2053), (IndexError, RuntimeError)),
        ((257, 2053), torch.full((257,), -1), (IndexError, RuntimeError)),
    ],
    ids=["shape", "above", "below"],
)
def test_wrong_targets_are_refused(logits, target, error):
    with pytest.raises(error, match=r"batch_size|out of bounds|out of range"):
        half_cross_entropy(torch.zeros(logits, dtype=torch.bfloat16), target)


def test_unknown_reduction_is_torchs_error():
    logits, target = make(BLOCKED["rows"], torch.bfloat16)
    with pytest.raises(ValueError, match="median is not a valid value for reduction"):
        half_cross_entropy(logits, target, reduction="median")


def test_no_grad_records_nothing():
    logits, target = make(BLOCKED["rows"], torch.bfloat16)
    with torch.no_grad():
        loss = half_cross_entropy(logits, target)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, F.cross_entropy(logits.float(), target).detach())


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(13, 7), BLOCKED["rows"]], ids=["small", "blocked"])
def test_compiled_equals_eager(shape):
    logits, target = make(shape, torch.bfloat16)
    compiled = torch.compile(lambda x, y: half_cross_entropy(x, y), backend="eager", fullgraph=True)
    loss, grad = run(compiled, logits, target)
    expected, expected_grad = run(cross_entropy_reference, logits, target)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(grad, expected_grad)

"""What is cast, what stays, and what is refused."""

from typing import Any

import pytest
import torch
import torchmetrics
from support.engine import make_engine
from torch import Tensor, nn
from torch.nn.utils import parametrizations, weight_norm

from lightning_mp.amp.model_cast import check_castable, kept_module_types
from lightning_mp.amp.opt_levels import resolve_opt_level

HALF, FULL = torch.bfloat16, torch.float32


def convert(model: nn.Module, level: str = "O2-bf16") -> Any:
    engine = make_engine(level)
    engine.convert(model)
    return engine


def dtypes(model: nn.Module) -> dict[str, torch.dtype]:
    tensors = [*model.named_parameters(remove_duplicate=False)]
    tensors += [*model.named_buffers(remove_duplicate=False)]
    return {name: item.dtype for name, item in tensors}


class OwnNorm(nn.BatchNorm1d):
    """A user's subclass."""


NORMS = [
    nn.BatchNorm1d(7),
    nn.BatchNorm1d(7, affine=False),
    OwnNorm(7),
    nn.BatchNorm2d(7),
    nn.BatchNorm3d(7),
    nn.SyncBatchNorm(7),
    nn.InstanceNorm1d(7, affine=True, track_running_stats=True),
    nn.InstanceNorm2d(7, affine=True),
    nn.LayerNorm(7),
    nn.GroupNorm(7, 7),
    nn.RMSNorm(7),
]


@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: type(norm).__name__)
def test_norm_layers_stay(norm: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(7, 7), norm)
    before = {id(item) for item in [*norm.parameters(), *norm.buffers()]}
    engine = convert(model)
    found = dtypes(model)
    assert found["0.weight"] == found["0.bias"] == HALF
    kept = {dtype for name, dtype in found.items() if name.startswith("1.")}
    assert kept <= {FULL, torch.int64}
    assert {id(item) for item in [*norm.parameters(), *norm.buffers()]} == before
    assert len(engine.masters.half_parameters) == 2


@pytest.mark.parametrize(
    ("keeps_batch_norms", "keeps_norms", "kept"),
    [(True, True, "both"), (True, False, "batch"), (False, False, "none")],
)
def test_which_norms_are_kept(keeps_batch_norms: bool, keeps_norms: bool, kept: str) -> None:
    properties = resolve_opt_level(
        "O2", keep_batchnorm_fp32=keeps_batch_norms, keep_norms_fp32=keeps_norms
    )
    types = kept_module_types(properties)
    assert isinstance(nn.BatchNorm1d(3), types) is (kept != "none")
    assert isinstance(nn.LayerNorm(3), types) is (kept == "both")


def test_a_parametrized_norm_stays() -> None:
    class Positive(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight.exp()

    model = nn.Sequential(nn.Linear(7, 7), nn.LayerNorm(7))
    nn.utils.parametrize.register_parametrization(model[1], "weight", Positive())
    engine = convert(model)
    assert dtypes(model)["1.parametrizations.weight.original"] == FULL
    with engine.forward_context():
        assert model(torch.randn(5, 7)).isfinite().all()


def test_tied_weights_stay_tied() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(11, 7), "head": nn.Linear(7, 11, bias=False)})
    model["head"].weight = model["embed"].weight
    engine = convert(model)
    assert model["head"].weight is model["embed"].weight
    assert model["head"].weight.dtype == HALF
    assert len(engine.masters.half_parameters) == 1
    engine.restore()
    assert model["head"].weight is model["embed"].weight
    assert model["head"].weight.dtype == FULL


def test_shared_modules_are_cast_once() -> None:
    shared = nn.Linear(7, 7)
    engine = convert(nn.Sequential(shared, nn.ReLU(), shared))
    assert len(engine.masters.half_parameters) == 2
    assert shared.weight.dtype == HALF


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_weight_shared_with_a_norm_stays(norm_first: bool) -> None:
    norm, scale = nn.LayerNorm(7), nn.ParameterList([nn.Parameter(torch.ones(7))])
    scale[0] = norm.weight
    engine = convert(nn.ModuleList([norm, scale] if norm_first else [scale, norm]))
    assert norm.weight.dtype == FULL
    assert not engine.masters.half_parameters


def test_other_dtypes_are_left_alone() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = nn.Parameter(torch.ones(3))
            self.wide = nn.Parameter(torch.ones(3, dtype=torch.float64))
            self.wave = nn.Parameter(torch.ones(3, dtype=torch.complex64))
            self.count = nn.Parameter(torch.ones(3, dtype=torch.int32), requires_grad=False)
            self.register_buffer("step", torch.zeros((), dtype=torch.int64))
            self.register_buffer("mask", torch.ones(3, dtype=torch.bool))
            self.register_buffer("nothing", None)
            self.register_parameter("none", None)

    model = Odd()
    before = dtypes(model)
    convert(model)
    assert dtypes(model) == {**before, "plain": HALF}


def test_metrics_are_not_touched() -> None:
    class WithMetric(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.metric = torchmetrics.MetricCollection(
                {"mean": torchmetrics.MeanMetric(), "error": torchmetrics.MeanSquaredError()}
            )
            self.metric["mean"].register_buffer("table", torch.ones(3))

    model = WithMetric()
    convert(model)
    assert model.layer.weight.dtype == HALF
    assert {dtype for name, dtype in dtypes(model).items() if "metric" in name} == {FULL}


@pytest.mark.parametrize(
    "norm", [weight_norm, parametrizations.weight_norm, parametrizations.spectral_norm]
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_reparametrized_layers_train(norm: Any) -> None:
    model = nn.Sequential(norm(nn.Linear(7, 5)), nn.Tanh(), norm(nn.Linear(5, 3)))
    engine = convert(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    engine.attach([optimizer])
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        with engine.forward_context():
            loss = nn.functional.mse_loss(model(torch.ones(3, 7)), torch.ones(3, 3))
        engine.scale_loss(loss).backward()
        engine.step(optimizer)
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 10
    engine.restore()
    assert set(dtypes(model).values()) == {FULL}
    assert model(torch.ones(3, 7)).dtype == FULL


@pytest.mark.parametrize("module", [nn.LSTM(7, 5, 2), nn.GRU(7, 5, bidirectional=True)])
def test_recurrent_layers_use_the_cast_weights(module: nn.Module) -> None:
    engine = convert(module)
    with engine.forward_context():
        output, _ = module(torch.randn(3, 2, 7))
    assert output.dtype == FULL
    assert {item.dtype for item in module.parameters()} == {HALF}


@pytest.mark.parametrize("level", ["O2-bf16", "O2-fp16", "O3-fp16"])
@pytest.mark.parametrize(
    "make_value",
    [
        lambda: torch.randn(()),
        lambda: torch.randn(0, 3),
        lambda: torch.randn(2, 3, 5, 7).contiguous(memory_format=torch.channels_last),
        lambda: torch.randn(7, 5).t(),
        lambda: torch.randn(7, 10)[:, ::2],
    ],
)
def test_shapes_and_strides_are_kept(level: str, make_value: Any) -> None:
    module = nn.ParameterList([nn.Parameter(make_value())])
    value, stride = module[0].detach().clone(), module[0].detach().clone().stride()
    engine = convert(module, level)
    parameter = module[0]
    assert parameter.stride() == engine.masters.of(parameter).stride() == stride
    optimizer = torch.optim.AdamW([parameter], eps=1e-4)
    engine.attach([optimizer])
    engine.scale_loss(parameter.float().square().sum()).backward()
    engine.step(optimizer)
    assert parameter.shape == value.shape
    engine.restore()
    assert parameter.stride() == stride
    assert parameter.dtype == FULL


def test_frozen_parameters_are_cast_and_stay_frozen() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].requires_grad_(False)
    engine = convert(model)
    assert [item.requires_grad for item in model.parameters()] == [False, False, True, True]
    assert model[0].weight.dtype == HALF
    engine.restore()
    assert [item.requires_grad for item in model.parameters()] == [False, False, True, True]


def scripted(module: nn.Module) -> nn.Module:
    return torch.jit.script(module)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_scripted_parts_without_weights_are_fine() -> None:
    model = nn.Sequential(nn.Linear(3, 3), scripted(nn.ReLU()))
    engine = convert(model)
    engine.attach([torch.optim.SGD(model.parameters())])
    assert model(torch.ones(1, 3)).dtype == FULL
    assert set(model.state_dict()) == {"0.weight", "0.bias"}
    engine.restore()
    assert model[0].weight.dtype == FULL


def half_inside() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3).half())


REFUSED = [
    (lambda: nn.DataParallel(nn.Linear(3, 3)), "wrapped in DataParallel"),
    (lambda: nn.Sequential(nn.Linear(3, 3), nn.DataParallel(nn.Linear(3, 3))), "'1' is wrapped"),
    (
        lambda: nn.Sequential(nn.Linear(3, 3), scripted(nn.Linear(3, 3))),
        "'1' is a torch.jit module",
    ),
    (half_inside, r"'1.weight' has dtype torch.float16"),
    (lambda: nn.Linear(3, 3).bfloat16(), r"'weight' has dtype torch.bfloat16"),
    (lambda: nn.Sequential(nn.Linear(3, 3), nn.LazyLinear(3)), "'1.weight' has no shape yet"),
    (lambda: nn.Sequential(nn.Linear(3, 3), nn.LazyBatchNorm1d(affine=False)), "no shape yet"),
]


@pytest.mark.parametrize(("make_model", "message"), REFUSED)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_refused_models_are_unchanged(make_model: Any, message: str) -> None:
    model = make_model()
    before = [(id(item), item.dtype) for item in model.parameters()]
    engine = make_engine("O2-bf16")
    with pytest.raises(ValueError, match=message):
        engine.convert(model)
    assert [(id(item), item.dtype) for item in model.parameters()] == before
    assert not engine.is_converted
    assert not model._state_dict_hooks
    assert not model._forward_pre_hooks


def test_ddp_wrapped_models_are_refused() -> None:
    wrapped = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapped)
    wrapped.module = nn.Linear(3, 3)
    with pytest.raises(ValueError, match="wrapped in DistributedDataParallel"):
        check_castable(wrapped)


def test_o0_takes_any_model() -> None:
    model = half_inside()
    engine = convert(model, "O0")
    assert not engine.masters.has_masters
    assert dtypes(model)["1.weight"] == torch.float16

"""What the fused optimizers promise beyond the maths: scaling, copies, settings, refusals."""

import copy
import math
import pickle
from typing import Any

import jsonargparse
import pytest
import torch
from support.host_reads import HostReads
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from lightning_mp.kernels.group_steps import group_step_of
from lightning_mp.optim import FusedAdam, FusedAdamW, FusedSGD

KINDS: list[tuple[Any, dict[str, Any]]] = [
    (FusedAdam, {"lr": 0.05}),
    (FusedAdamW, {"lr": 0.05}),
    (FusedSGD, {"lr": 0.05}),
    (FusedSGD, {"lr": 0.05, "momentum": 0.9}),
    (FusedSGD, {"lr": 0.05, "momentum": 0.9, "dampening": 0.5}),
]


def weights() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(13, 7)), nn.Parameter(torch.randn(103))]


def snapshot(optimizer: Optimizer) -> list[Tensor]:
    found = [item.detach().clone() for group in optimizer.param_groups for item in group["params"]]
    for entry in optimizer.state.values():
        found += [value.clone() for value in entry.values()]
    return found


@pytest.mark.parametrize(("cls", "options"), KINDS)
@pytest.mark.parametrize("grad_scale", [None, 1024.0])
@pytest.mark.parametrize("num_before", [0, 2])
def test_a_step_that_overflowed_changes_nothing(
    cls: Any, options: Any, grad_scale: float | None, num_before: int
) -> None:
    items = weights()
    optimizer: Any = cls(items, **options)
    for item in items:
        item.grad = torch.ones_like(item)
    for _ in range(num_before):
        optimizer.step()
    before = snapshot(optimizer)
    items[0].grad[0, 0] = math.nan
    optimizer.grad_scale = None if grad_scale is None else torch.tensor(grad_scale)
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    after = snapshot(optimizer)
    if num_before:
        assert len(after) == len(before)
    else:
        assert all(not value.any() for value in after[len(before) :])
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=False))


@pytest.mark.parametrize(("cls", "options"), KINDS)
def test_the_first_good_step_after_an_overflow_is_a_first_step(cls: Any, options: Any) -> None:
    results = []
    for overflows in (0, 2):
        items = weights()
        optimizer: Any = cls(items, **options)
        for item in items:
            item.grad = torch.ones_like(item)
        for found in [1.0] * overflows + [0.0, 0.0]:
            optimizer.found_inf = torch.full((1,), found)
            optimizer.step()
        results.append(snapshot(optimizer))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize(("cls", "options"), KINDS)
def test_works_under_a_grad_scaler(cls: Any, options: Any) -> None:
    results = []
    for scale in (1.0, 2.0**10):
        items = weights()
        optimizer = cls(items, **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=100)
        for factor in (1.0, math.inf, 0.5):
            optimizer.zero_grad()
            scaler.scale(sum((item * factor).sum() for item in items)).backward()
            scaler.step(optimizer)
            scaler.update()
        # The overflow has halved it.
        assert scaler.get_scale() == scale / 2
        results.append(snapshot(optimizer))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize(("cls", "options"), KINDS[:4])
@pytest.mark.parametrize("num_before", [0, 1])
def test_nothing_is_read_on_the_host(cls: Any, options: Any, num_before: int) -> None:
    items = weights()
    optimizer: Any = cls(items, **options)
    for item in items:
        item.grad = torch.ones_like(item)
    for _ in range(num_before):
        optimizer.step()
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(0.0)
    with HostReads() as reads:
        optimizer.step()
    assert reads.number == 0


@pytest.mark.parametrize(("cls", "options"), KINDS)
@pytest.mark.parametrize("how", [copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item))])
def test_copies_go_on(cls: Any, options: Any, how: Any) -> None:
    items = weights()
    optimizer = cls(items, **options)
    for item in items:
        item.grad = torch.ones_like(item)
    optimizer.step()
    twin = how(optimizer)
    assert twin._step_supports_amp_scaling
    own = [item for group in twin.param_groups for item in group["params"]]
    for item in own:
        item.grad = torch.ones_like(item)
    twin.step()
    optimizer.step()
    assert all(torch.equal(*pair) for pair in zip(snapshot(optimizer), snapshot(twin), strict=True))


@pytest.mark.parametrize(("cls", "options"), KINDS)
def test_schedulers_move_the_rate(cls: Any, options: Any) -> None:
    results = []
    for is_tensor in (False, True):
        items = weights()
        lr = torch.tensor(0.5) if is_tensor else 0.5
        optimizer = cls(items, **{**options, "lr": lr})
        scheduler = LambdaLR(optimizer, lambda step: 0.5**step)
        for _ in range(3):
            for item in items:
                item.grad = torch.ones_like(item)
            optimizer.step()
            scheduler.step()
        results.append(snapshot(optimizer))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("cls", [FusedAdam, FusedAdamW])
def test_cycles_of_the_betas_are_followed(cls: Any) -> None:
    optimizer = cls(weights(), lr=0.05)
    scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=5)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["betas"][0] < 0.95


@pytest.mark.parametrize(
    ("cls", "torchs"), [(FusedAdam, Adam), (FusedAdamW, AdamW), (FusedSGD, SGD)]
)
def test_is_its_counterpart_to_others(cls: Any, torchs: Any) -> None:
    optimizer = cls(weights(), lr=0.05)
    assert isinstance(optimizer, torchs)
    assert group_step_of(optimizer) is not None
    subclass = type("Own", (cls,), {})
    assert group_step_of(subclass(weights(), lr=0.05)) is None


@pytest.mark.parametrize(("cls", "options"), KINDS)
def test_is_configured_from_yaml(cls: Any, options: Any) -> None:
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Optimizer, "optimizer", skip={"params"}, instantiate=False)
    text = {"class_path": f"lightning_mp.optim.{cls.__name__}", "init_args": options}
    parsed = parser.parse_object({"optimizer": text})
    made = cls(weights(), **parsed.optimizer.init_args.as_dict())
    assert made.param_groups[0]["lr"] == 0.05


def test_a_wrong_yaml_is_refused() -> None:
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Optimizer, "optimizer", skip={"params"}, instantiate=False)
    text = {"class_path": "lightning_mp.optim.FusedSGD", "init_args": {"momentum": "high"}}
    with pytest.raises(jsonargparse.ArgumentError, match="momentum"):
        parser.parse_object({"optimizer": text})


def test_materialize_master_grads_survives_nothing_but_its_default() -> None:
    optimizer = FusedSGD(weights(), lr=0.1, materialize_master_grads=False)
    assert optimizer.materialize_master_grads is False
    assert FusedSGD(weights(), lr=0.1).materialize_master_grads is True
    assert "materialize_master_grads" not in optimizer.param_groups[0]


@pytest.mark.parametrize("cls", [FusedAdam, FusedAdamW, FusedSGD])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_other_dtypes_are_refused(cls: Any, dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=rf"params\[1\] of {cls.__name__} is {dtype}; allowed"):
        cls([*weights()[:1], nn.Parameter(torch.zeros(3, dtype=dtype))], lr=0.1)
    optimizer = cls(weights(), lr=0.1)
    with pytest.raises(TypeError, match=r"allowed are torch\.float32"):
        optimizer.add_param_group({"params": nn.Parameter(torch.zeros(3, dtype=dtype))})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("cls", [FusedAdam, FusedAdamW, FusedSGD])
def test_sparse_gradients_are_refused_before_anything_moves(cls: Any) -> None:
    dense = nn.Parameter(torch.ones(7))
    table = nn.Embedding(5, 3, sparse=True)
    optimizer = cls([dense, table.weight], lr=0.1)
    (dense.sum() + table(torch.tensor([1])).sum()).backward()
    with pytest.raises(RuntimeError, match=rf"{cls.__name__}: the gradient .* \(5, 3\) is torch"):
        optimizer.step()
    assert torch.equal(dense, torch.ones(7))
    assert not optimizer.state


@pytest.mark.parametrize(("cls", "torchs"), [(FusedAdam, Adam), (FusedAdamW, AdamW)])
def test_states_of_other_variants_are_refused(cls: Any, torchs: Any) -> None:
    saved = torchs(weights(), lr=0.3, amsgrad=True).state_dict()
    optimizer = cls(weights(), lr=0.1)
    with pytest.raises(ValueError, match=f"amsgrad = True for {cls.__name__}; only False"):
        optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize(("cls", "options"), KINDS)
@pytest.mark.parametrize("wrong", [{"lr": -0.1}, {"weight_decay": -1.0}])
def test_numbers_out_of_range_are_refused(cls: Any, options: Any, wrong: Any) -> None:
    with pytest.raises(ValueError, match="-"):
        cls(weights(), **{**options, **wrong})


@pytest.mark.parametrize("cls", [FusedAdam, FusedAdamW])
def test_capturable_is_the_same_step(cls: Any) -> None:
    results = []
    for capturable in (False, True):
        items = weights()
        optimizer = cls(items, lr=0.1, capturable=capturable)
        for item in items:
            item.grad = torch.ones_like(item)
        optimizer.step()
        assert optimizer.param_groups[0]["capturable"] is capturable
        results.append(snapshot(optimizer))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))

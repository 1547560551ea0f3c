"""Bfloat16 moments: an option of the groups that repeats, resumes and is exchanged with torch."""

import copy
import io
import math
import pickle
from typing import Any

import jsonargparse
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from lightning_mp.optim import FusedAdam, FusedAdamW

PAIRS: list[tuple[Any, Any]] = [(FusedAdam, Adam), (FusedAdamW, AdamW)]
BF16 = torch.bfloat16


def weights(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(13, 7), (103,), ()]
    return [nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in shapes]


def run(optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(100 + step)
        for group in optimizer.param_groups:
            for item in group["params"]:
                item.grad = torch.randn(item.shape, generator=generator).to(item.dtype)
        optimizer.step()


def moments(optimizer: Optimizer) -> list[Tensor]:
    entries = optimizer.state_dict()["state"].values()
    return [entry[name] for entry in entries for name in ("exp_avg", "exp_avg_sq")]


def everything(optimizer: Optimizer) -> list[Tensor]:
    own = [item.detach().clone() for group in optimizer.param_groups for item in group["params"]]
    return [*own, *(item.clone() for item in moments(optimizer))]


def assert_equal(first: list[Tensor], second: list[Tensor]) -> None:
    for one, other in zip(first, second, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("cls", [FusedAdam, FusedAdamW])
@pytest.mark.parametrize("state_dtype", [BF16, "bf16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_moments_have_the_dtype_and_weights_follow_fp32_ones(
    cls: Any, state_dtype: Any, dtype: torch.dtype
) -> None:
    rounded, full = cls(weights(dtype), state_dtype=state_dtype), cls(weights(dtype))
    run(rounded, range(10))
    run(full, range(10))
    assert {item.dtype for item in moments(rounded)} == {BF16}
    assert {item.dtype for item in moments(full)} == {torch.float32}
    for found, expected in zip(moments(rounded)[1::2], moments(full)[1::2], strict=True):
        torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=1e-6)
    pairs = zip(rounded.param_groups[0]["params"], full.param_groups[0]["params"], strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=0.02, atol=2e-3)


@pytest.mark.parametrize("state_dtype", [torch.float32, "fp32"])
def test_float32_moments_leave_nothing_in_the_groups(state_dtype: Any) -> None:
    optimizer = FusedAdamW(weights(), state_dtype=state_dtype)
    assert optimizer.param_groups[0].keys() == AdamW(weights()).param_groups[0].keys()


def test_roundings_follow_the_seed_of_the_group_and_ask_no_generator() -> None:
    results = []
    for seed, torch_seed in ((0, 3), (0, 4), (2**63 - 1, 3)):
        torch.manual_seed(torch_seed)
        before = torch.get_rng_state()
        group = {"params": weights()} if seed == 0 else {"params": weights(), "rounding_seed": seed}
        optimizer = FusedAdamW([group], state_dtype="bf16")
        assert optimizer.param_groups[0]["rounding_seed"] == seed
        run(optimizer, range(5))
        assert torch.equal(torch.get_rng_state(), before)
        results.append(everything(optimizer))
    assert_equal(results[0], results[1])
    assert not torch.equal(results[0][3], results[2][3])


@pytest.mark.parametrize("cls", [FusedAdam, FusedAdamW])
def test_a_resumed_run_goes_on_bit_for_bit(cls: Any) -> None:
    whole, begun = (
        cls([{"params": weights(), "rounding_seed": 5}], state_dtype="bf16") for _ in range(2)
    )
    run(whole, range(6))
    run(begun, range(3))
    file = io.BytesIO()
    torch.save(begun.state_dict(), file)
    file.seek(0)
    resumed = cls([nn.Parameter(item.detach().clone()) for item in begun.param_groups[0]["params"]])
    with_option = cls(resumed.param_groups[0]["params"], state_dtype="bf16")
    with_option.load_state_dict(torch.load(file, weights_only=True))
    assert with_option.param_groups[0]["rounding_seed"] == 5
    run(with_option, range(3, 6))
    assert_equal(everything(with_option), everything(whole))


@pytest.mark.parametrize("how", [copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item))])
def test_copies_go_on(how: Any) -> None:
    optimizer = FusedAdamW(weights(), state_dtype="bf16")
    run(optimizer, range(2))
    twin = how(optimizer)
    for item in (optimizer, twin):
        run(item, range(2, 4))
    assert_equal(everything(twin), everything(optimizer))
    twin.add_param_group({"params": [nn.Parameter(torch.ones(7))]})
    assert twin.param_groups[1]["state_dtype"] == BF16


@pytest.mark.parametrize(("cls", "torchs"), PAIRS)
def test_float32_states_of_torch_are_rounded_to_nearest_once(cls: Any, torchs: Any) -> None:
    given = torchs(weights(), lr=0.3)
    run(given, range(3))
    saved = copy.deepcopy(given.state_dict())
    optimizer = cls(weights(), state_dtype="bf16")
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 0.3
    assert optimizer.param_groups[0]["state_dtype"] == BF16
    assert_equal(moments(optimizer), [item.bfloat16() for item in moments(given)])
    assert_equal(moments(given), [saved["state"][k][n] for k in range(3) for n in MOMENTS])
    run(optimizer, range(3, 5))
    assert {item.dtype for item in moments(optimizer)} == {BF16}


MOMENTS = ("exp_avg", "exp_avg_sq")


@pytest.mark.parametrize(("cls", "torchs"), PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_gives_bfloat16_states_the_dtype_of_the_parameter(
    cls: Any, torchs: Any, dtype: torch.dtype
) -> None:
    given = cls(weights(dtype), state_dtype="bf16")
    run(given, range(3))
    other = torchs(weights(dtype))
    other.load_state_dict(copy.deepcopy(given.state_dict()))
    assert_equal(moments(other), [item.to(dtype) for item in moments(given)])
    run(other, range(3, 5))
    assert {item.dtype for item in moments(other)} == {dtype}
    # Back again, the seed has gone along.
    back = cls(weights(dtype), state_dtype="bf16")
    back.load_state_dict(other.state_dict())
    assert back.param_groups[0]["rounding_seed"] == given.param_groups[0]["rounding_seed"]


def test_float32_moments_take_bfloat16_ones_exactly() -> None:
    given = FusedAdamW(weights(), state_dtype="bf16")
    run(given, range(3))
    optimizer = FusedAdamW(weights())
    optimizer.load_state_dict(copy.deepcopy(given.state_dict()))
    assert_equal(moments(optimizer), [item.float() for item in moments(given)])
    assert optimizer.param_groups[0].keys() == AdamW(weights()).param_groups[0].keys()


def test_groups_may_differ_and_keep_their_own() -> None:
    first, second, third = weights()
    groups = [{"params": [first], "state_dtype": "fp32"}, {"params": [second], "rounding_seed": 11}]
    optimizer = FusedAdamW(groups, state_dtype="bf16")
    optimizer.add_param_group({"params": [third]})
    run(optimizer, range(2))
    found = [item.dtype for item in moments(optimizer)[::2]]
    assert found == [torch.float32, BF16, BF16]
    seeds = [group.get("rounding_seed") for group in optimizer.param_groups]
    assert seeds == [None, 11, 0]
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(saved)
    assert [item.dtype for item in moments(optimizer)[::2]] == found
    assert [group.get("rounding_seed") for group in optimizer.param_groups] == seeds


@pytest.mark.parametrize("cls", [FusedAdam, FusedAdamW])
def test_a_step_that_overflowed_changes_nothing(cls: Any) -> None:
    optimizer: Any = cls(weights(), state_dtype="bf16", lr=0.1)
    run(optimizer, range(2))
    before = everything(optimizer)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(8.0), torch.tensor(1.0)
    optimizer.param_groups[0]["params"][0].grad[0, 0] = math.inf
    optimizer.step()
    assert_equal(everything(optimizer), before)


def test_capturable_is_the_same_step() -> None:
    results = []
    for capturable in (False, True):
        optimizer = FusedAdamW(weights(), state_dtype="bf16", capturable=capturable)
        run(optimizer, range(3))
        results.append(everything(optimizer))
    assert_equal(*results)


@pytest.mark.parametrize("cls", [FusedAdam, FusedAdamW])
@pytest.mark.parametrize("state_dtype", [torch.float16, "fp16", "float32", None, 32])
def test_other_dtypes_are_refused(cls: Any, state_dtype: Any) -> None:
    message = r"state_dtype = .*; allowed are torch\.float32 and torch\.bfloat16, or 'fp32' and"
    with pytest.raises(ValueError, match=message):
        cls(weights(), state_dtype=state_dtype)
    optimizer = cls(weights())
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))], "state_dtype": "fp16"})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, True, "7"])
def test_other_seeds_are_refused(seed: Any) -> None:
    group = {"params": weights(), "rounding_seed": seed}
    with pytest.raises(ValueError, match=r"rounding_seed = .*; allowed is an integer from 0 to"):
        FusedAdamW([group], state_dtype="bf16")


@pytest.mark.parametrize("cls", [FusedAdam, FusedAdamW])
@pytest.mark.parametrize("options", [{}, {"state_dtype": "bf16"}, {"state_dtype": "fp32"}])
def test_is_configured_from_yaml(cls: Any, options: Any) -> None:
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Optimizer, "optimizer", skip={"params"}, instantiate=False)
    text = {"class_path": f"lightning_mp.optim.{cls.__name__}", "init_args": options}
    parsed = parser.parse_object({"optimizer": text})
    # What is written to a file can be read from it.
    again = parser.parse_string(parser.dump(parsed))
    made = cls(weights(), **again.optimizer.init_args.as_dict())
    expected = BF16 if options.get("state_dtype") == "bf16" else None
    assert made.param_groups[0].get("state_dtype") == expected


def test_a_state_of_other_groups_is_refused_and_changes_nothing() -> None:
    optimizer = FusedAdamW(weights(), state_dtype="bf16")
    before = copy.deepcopy(optimizer.state_dict())
    for groups in ([], [{"params": weights()[:1]}, {"params": weights()[1:]}]):
        saved = FusedAdamW(groups or weights()[:1], state_dtype="bf16").state_dict()
        with pytest.raises(ValueError, match="parameter group"):
            optimizer.load_state_dict(saved)
    assert optimizer.state_dict() == before

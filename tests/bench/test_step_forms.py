import pytest
import torch
from support.kernels import requires_kernels
from support.tolerances import SAME_MATHS

from benchkit.step_forms import (
    ADOPTING,
    FORMS,
    OURS,
    ROUNDED,
    SPLIT,
    TORCH_FUSED,
    forms_of,
    parts_of,
)
from benchkit.step_memory import measure_step_memory
from benchkit.step_tensors import StepTensors
from benchkit.step_times import CALLS, measure_step_times
from benchkit.stopwatch import time_calls
from lightning_mp.kernels.split import join_

SHAPES = [(13, 7), (103,), (1,), (5, 3, 2, 2)]
CPU = torch.device("cpu")


def stepped(name, dtype):
    tensors = StepTensors(SHAPES, dtype, CPU)
    for gradient in tensors.gradients:
        # A norm above 1, which is clipped, as that of the long lists is.
        gradient.mul_(256)
    run = FORMS[name](tensors)
    for _ in range(3):
        run()
    if name in (SPLIT, ROUNDED):
        join_(tensors.halves, tensors.remainders, tensors.weights)
    return tensors


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FORMS)
def test_all_ways_do_the_same(name, dtype):
    if name not in forms_of(dtype):
        assert name in (SPLIT, ROUNDED)
        assert dtype == torch.float16
        return
    found, expected = stepped(name, dtype), stepped(TORCH_FUSED, dtype)
    before = StepTensors(SHAPES, dtype, CPU)
    for index in range(len(SHAPES)):
        assert not torch.equal(found.weights[index], before.weights[index])
        for role in ("weights", "exp_avgs", "exp_avg_sqs", "steps"):
            mine, other, close = getattr(found, role)[index], getattr(expected, role)[index], {}
            if name == ROUNDED:
                # Three steps of 1e-4 with moments of 8 bits.
                close = {"rtol": 2.0**-6, "atol": 1e-5 if role == "weights" else 1e-9}
            if name == ROUNDED and role.startswith("exp_"):
                mine = getattr(found, f"rounded_{role}")[index].float()
            torch.testing.assert_close(mine, other, **(close or SAME_MATHS))
        if name not in (SPLIT, ROUNDED):
            assert torch.equal(found.halves[index], found.weights[index].to(dtype))


@pytest.mark.parametrize("name", FORMS)
def test_every_way_skips_an_overflow(name):
    tensors = StepTensors(SHAPES, torch.bfloat16, CPU)
    run = FORMS[name](tensors)
    tensors.gradients[1][51] = torch.inf
    before = [half.clone() for half in tensors.halves]
    run()
    assert all(map(torch.equal, tensors.halves, before))


def test_gradients_are_unscaled_and_clipped():
    tensors = stepped(OURS, torch.bfloat16)
    scaled = torch.cat([gradient.float().flatten() for gradient in tensors.gradients])
    norm = float(scaled.norm()) / 1024
    assert norm > 2
    assert float(tensors.norm) == pytest.approx(norm, rel=1e-4)
    assert float(tensors.factor) == pytest.approx(1 / (norm * 1024), rel=1e-4)


@pytest.mark.parametrize("flag", [0.0, 1.0])
def test_torch_is_spared_the_wait_on_a_gpu(flag):
    """The step of a GPU, on tensors of the CPU."""
    tensors = StepTensors(SHAPES, torch.bfloat16, CPU)
    before = [half.clone() for half in tensors.halves]
    if flag:
        tensors.gradients[0][3, 3] = torch.inf
    tensors.device = torch.device("meta")
    FORMS[TORCH_FUSED](tensors)()
    assert all(map(torch.equal, tensors.halves, before)) == bool(flag)
    assert float(tensors.found_inf) == flag


@requires_kernels
def test_times_have_every_way_in_every_round(capsys):
    measured = measure_step_times(
        list_name="small", half_dtype="bfloat16", num_rounds=3, num_threads=1, is_smoke=True
    )
    names = {*forms_of(torch.bfloat16), *parts_of(torch.bfloat16), CALLS}
    assert set(measured["times"]) == names
    assert set(measured["streams"]) == {"read", "copied", "adopted", "split", "rounded"}
    assert set(measured["in_cache"]) == set(parts_of(torch.bfloat16))
    assert [len(rounds) for rounds in measured["in_cache"].values()] == [3] * 5
    for rounds in (*measured["times"].values(), *measured["streams"].values()):
        assert len(rounds) == 3
        assert all(times["wall"] > 0 and times["cpu"] > 0 for times in rounds)
    assert measured["num_tensors"] == 40
    assert capsys.readouterr().err.count("small, bfloat16, 1 threads: ") == len(names) + 5


@requires_kernels
def test_ways_are_left_out_and_rounds_end_at_the_deadline():
    measured = measure_step_times(
        list_name="small",
        half_dtype="float16",
        num_rounds=3,
        num_threads=1,
        without=[ADOPTING],
        deadline=0.0,
        is_smoke=True,
    )
    assert ADOPTING not in measured["times"]
    assert SPLIT not in measured["times"]
    assert [len(rounds) for rounds in measured["times"].values()] == [1] * len(measured["times"])


def test_memory_has_every_way():
    found = measure_step_memory(
        list_name="small", half_dtype="bfloat16", num_threads=1, is_smoke=True
    )
    assert set(found) == set(FORMS)
    assert all(sizes["peak"] >= sizes["resident"] for sizes in found.values())


def test_a_way_holds_only_what_it_needs():
    tensors = StepTensors(SHAPES, torch.bfloat16, CPU)
    FORMS[ROUNDED](tensors)()
    assert "exp_avgs" not in vars(tensors)
    FORMS[SPLIT](tensors)()
    assert "masters" not in vars(tensors)
    FORMS[OURS](tensors)()
    assert "full_gradients" not in vars(tensors)
    FORMS[TORCH_FUSED](tensors)()
    assert "full_gradients" in vars(tensors)


class FakeEvent:
    """An event of a GPU on which a call takes 3 ms."""

    num_calls = 0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = FakeEvent.num_calls

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return (other.at - self.at) * 3.0


def test_calls_on_a_gpu_are_timed_by_events(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def run():
        FakeEvent.num_calls += 1

    times = time_calls(run, torch.device("cuda"), 5)
    assert FakeEvent.num_calls == 5
    assert times.wall == pytest.approx(0.003)
    assert 0 <= times.cpu < 0.003


def test_calls_are_counted():
    calls = []
    times = time_calls(lambda: calls.append(len(calls)), CPU, 7)
    assert calls == list(range(7))
    assert times.wall > 0

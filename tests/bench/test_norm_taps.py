import pytest
import torch

from benchkit import norm_taps
from benchkit.norm_taps import FREE_HOOKS, HOOKS, PASS_1, _Bench, measure_norm_taps


@pytest.fixture
def calls(monkeypatch):
    """Gradients of each call of pass 1, less the calls that only measure what a call costs."""
    seen = []

    def note(gradients, **outputs):
        if [gradient.numel() for gradient in gradients] != [1]:
            seen.append([gradient.clone() for gradient in gradients])

    monkeypatch.setattr(norm_taps, "gradient_stats_", note)
    return seen


@pytest.mark.parametrize("gradient_dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("model", ["mlp", "width 256"])
def test_each_form_reads_the_same_gradients_once(model, gradient_dtype, calls):
    torch.manual_seed(0)
    bench = _Bench(model, gradient_dtype, is_smoke=True)
    read = {}
    for form in (PASS_1, HOOKS, FREE_HOOKS):
        calls.clear()
        bench.run(form)
        num_hooks = 0 if form == PASS_1 else len(bench.tapped)
        assert [len(gradients) for gradients in calls[:-1]] == [1] * num_hooks
        read[form] = sorted(item.double().abs().sum().item() for call in calls for item in call)
        assert len(read[form]) == len(bench.parameters)
        assert {item.dtype for call in calls for item in call} == {gradient_dtype}
    assert len(bench.tapped) > 0
    assert read[PASS_1] == read[HOOKS] == read[FREE_HOOKS]


def test_hooks_are_gone_after_a_run(calls):
    bench = _Bench("mlp", torch.bfloat16, is_smoke=True)
    bench.run(HOOKS)
    assert not any(item._post_accumulate_grad_hooks for item in bench.tapped)


def test_every_round_is_in_the_result():
    num_threads = torch.get_num_threads()
    try:
        result = measure_norm_taps(
            model="mlp", gradient_dtype="float32", num_rounds=3, num_threads=1, is_smoke=True
        )
    finally:
        torch.set_num_threads(num_threads)
    assert result["numel"] == 33 * 17 + 17 + 17 * 10 + 10
    assert result["num_hooks"] == 2
    for times in result["times"].values():
        assert {name: len(rounds) for name, rounds in times.items()} == {"backward": 3, "norm": 3}

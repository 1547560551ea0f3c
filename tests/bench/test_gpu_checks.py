import pytest
import torch

from benchkit import gpu_checks
from benchkit.gpu_check import NotHereError
from benchkit.gpu_checks import CHECKS, measure_gpu_checks
from benchkit.gpu_device_checks import DEVICE_CHECKS
from benchkit.gpu_op_checks import OP_CHECKS
from benchkit.gpu_rounding_checks import ROUNDING_CHECKS
from benchkit.gpu_rows import KINDS, make_rows, place
from benchkit.gpu_training_checks import TRAINING_CHECKS

CPU = torch.device("cpu")
OPS = torch.ops.lightning_mp


@pytest.mark.parametrize("name", [*OP_CHECKS, *ROUNDING_CHECKS])
def test_operations_pass_on_the_cpu(name):
    assert CHECKS[name](CPU, True)


@pytest.mark.parametrize("name", DEVICE_CHECKS)
def test_what_needs_a_gpu_says_so(name):
    with pytest.raises(NotHereError, match="needs a GPU"):
        DEVICE_CHECKS[name](CPU, True)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINING_CHECKS)
def test_trainings_pass_on_the_cpu(name):
    assert TRAINING_CHECKS[name](CPU, True)


def nudge(lists, index, position=-1):
    """Change an element of the last tensor of a list."""
    lists[index][-1].view(-1)[position] += 1


def misses_last_weight(adam):
    def wrong(*lists, **options):
        before = lists[1][-1].clone()
        adam(*lists, **options)
        lists[1][-1][-1] = before[-1]

    return wrong


def writes_when_skipped(adam):
    def wrong(*lists, found_inf, **options):
        adam(*lists, found_inf=found_inf, **options)
        if found_inf.item():
            nudge(lists, 3)

    return wrong


def forgets_half_of_the_list(gradient_stats):
    def wrong(gradients, *others):
        gradient_stats(gradients[: len(gradients) // 2], *others)

    return wrong


def leaves_out_the_last(l2_norm):
    def wrong(tensors, per_tensor):
        return l2_norm(tensors[:-1], False)[0], l2_norm(tensors, per_tensor)[1]

    return wrong


def nudges_output(index, position=-1):
    def plant(operation):
        def wrong(*lists, **options):
            operation(*lists, **options)
            nudge(lists, index, position)

        return wrong

    return plant


def grows_late(update_scale):
    def wrong(*state):
        update_scale(*state[:6], state[6] + 1, *state[7:])

    return wrong


def rounds_by_another_seed(adam):
    def wrong(*lists, **options):
        adam(*lists, **options | {"seed": options["seed"] + 1})

    return wrong


def depends_on_the_call(adam):
    calls = []

    def wrong(*lists, **options):
        adam(*lists, **options)
        calls.append(1)
        lists[3][-1][-1] += len(calls)

    return wrong


@pytest.mark.parametrize(
    ("check", "operation", "plant"),
    [
        ("Adam and AdamW", "adam_step_", misses_last_weight),
        ("SGD", "sgd_step_", misses_last_weight),
        ("skipped step", "adam_step_", writes_when_skipped),
        ("split masters", "join_", nudges_output(2)),
        ("statistics of gradients", "gradient_stats_", forgets_half_of_the_list),
        ("copies and sums", "axpby_", nudges_output(2)),
        ("norms", "l2_norm", leaves_out_the_last),
        ("split and join", "split_", nudges_output(2, position=0)),
        ("loss scale", "update_scale_", grows_late),
        ("same result every time", "adam_step_", depends_on_the_call),
        ("bfloat16 moments", "adam_step_", rounds_by_another_seed),
    ],
)
def test_a_planted_bug_is_found(check, operation, plant, monkeypatch):
    monkeypatch.setattr(OPS, operation, plant(getattr(OPS, operation)))
    with pytest.raises(AssertionError):
        CHECKS[check](CPU, True)


def test_results_say_what_happened(monkeypatch, capsys):
    def fails(device, is_quick):
        raise RuntimeError("an illegal\n  memory access")

    def is_absent(device, is_quick):
        raise NotHereError("needs a GPU")

    checks = {"one": lambda device, is_quick: "all well", "two": fails, "three": is_absent}
    monkeypatch.setattr(gpu_checks, "CHECKS", checks)
    results = measure_gpu_checks(names=list(checks), device="cpu")
    assert [(item["name"], item["outcome"], item["detail"]) for item in results] == [
        ("one", "passed", "all well"),
        ("two", "failed", "RuntimeError: an illegal memory access"),
        ("three", "not here", "needs a GPU"),
    ]
    assert capsys.readouterr().err.splitlines()[0] == "one: passed: all well"


def test_a_lost_gpu_ends_the_process(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: (_ for _ in ()).throw(RuntimeError()))
    monkeypatch.setattr(gpu_checks, "CHECKS", dict.fromkeys("ab", lambda device, is_quick: "well"))
    results = measure_gpu_checks(names=["a", "b"], device="cuda")
    assert [item["name"] for item in results] == ["a"]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_compared_in_every_role(kind):
    start = make_rows(kind, torch.bfloat16, (1, 7))
    start.on(CPU).assert_close(start)
    assert start.on(CPU).equals(start)
    for role in ("gradients", "weights", "exp_avgs", "exp_avg_sqs", "steps"):
        changed = start.on(CPU)
        getattr(changed, role)[1].view(-1)[0] += 200
        assert not changed.equals(start)
        with pytest.raises(AssertionError, match=rf"{role}\[1\]"):
            changed.assert_close(start)


def test_misaligned_copies_are_misaligned():
    tensor = torch.arange(7, dtype=torch.bfloat16)
    copy = place(tensor, CPU, is_misaligned=True)
    assert copy.data_ptr() % 16 == 2
    assert torch.equal(copy, tensor)
    assert place(tensor, CPU).data_ptr() % 16 == 0


def test_every_check_has_a_name_of_its_own():
    parts = (OP_CHECKS, ROUNDING_CHECKS, DEVICE_CHECKS, TRAINING_CHECKS)
    assert len(CHECKS) == sum(map(len, parts))

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def run_case(folder, timeout=120, **options):
    """Fit in another process, or several; return what each rank saw."""
    folder.mkdir(exist_ok=True)
    script = Path(__file__).with_name("warmup_case.py")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(folder), json.dumps(options)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(result.stderr)
    return [json.loads(file.read_text()) for file in sorted(folder.glob("?.json"))]


def flat(epochs):
    return list(chain.from_iterable(epochs))


def ddp(strategy, **options):
    return {"max_epochs": 3, **options, "strategy": strategy, "devices": 2}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Uninterrupted runs, by the number of ranks."""
    folder = tmp_path_factory.mktemp("whole")
    return {1: run_case(folder / "1", max_epochs=3), 2: run_case(folder / "2", **ddp("ddp"))}


@pytest.mark.parametrize(("strategy", "workers"), [("ddp", 2), ("ddp_spawn", 0), ("ddp_fork", 0)])
def test_ranks_share_the_global_batch(case, tmp_path, strategy, workers):
    ranks = run_case(tmp_path, **ddp(strategy, workers=workers))
    assert len(ranks) == 2
    assert ranks[0]["weights"] == ranks[1]["weights"]
    seen = 0
    for first, second in zip(ranks[0]["epochs"], ranks[1]["epochs"], strict=True):
        indices = flat(first) + flat(second)
        assert set(indices) == set(range(103))
        assert len(indices) == 104  # DistributedSampler pads one
        for mine, theirs in zip(first[:-1], second[:-1], strict=True):
            assert len(mine) == len(theirs)
            assert len(mine) + len(theirs) == case.make_warmup().ramp(seen)
            seen += len(mine) + len(theirs)
        seen += len(first[-1]) + len(second[-1])
    assert ranks[0]["steps"] == ranks[1]["steps"] == len(flat(ranks[0]["epochs"]))


@pytest.mark.parametrize(
    ("num_ranks", "stop", "workers"), [(1, 7, 0), (1, 17, 2), (2, 20, 2), (2, 17, 0)]
)
def test_new_process_resumes_bit_equal(tmp_path, whole, num_ranks, stop, workers):
    options = {"max_epochs": 3, "workers": workers}
    if num_ranks > 1:
        options = ddp("ddp", **options)
    run_case(tmp_path / "first", **options, stop=stop)
    checkpoint = str(tmp_path / "first" / f"{stop}.ckpt")
    ranks = run_case(tmp_path / "rest", **options, resume=checkpoint)
    assert len(ranks) == num_ranks
    for before, after in zip(whole[num_ranks], ranks, strict=True):
        assert flat(after["epochs"]) == flat(before["epochs"])[stop:]
        assert after["weights"] == before["weights"]


def test_another_world_size_is_refused(tmp_path):
    run_case(tmp_path / "first", max_epochs=3, stop=3)
    match = r"'world_size': 2\}; the checkpoint was written with \{.*'world_size': 1\}"
    with pytest.raises(RuntimeError, match=match):
        run_case(tmp_path, **ddp("ddp", resume=str(tmp_path / "first" / "3.ckpt")))


@pytest.mark.parametrize(
    ("warmup", "match"),
    [
        ({"start": 3, "end": 19}, "start_global_batch_size = 3 .* 2 ranks; .*; use 2 or 4"),
        ({"end": 21, "increment": 17}, "end_global_batch_size = 21 .*; use 20 or 22"),
        ({"end": 20, "increment": 1}, "increment = 1 .*; use 2"),
    ],
)
def test_indivisible_sizes_are_refused(tmp_path, warmup, match):
    with pytest.raises(RuntimeError, match=match):
        run_case(tmp_path, **ddp("ddp", warmup=warmup))


def test_default_increment_follows_the_world_size(tmp_path):
    ranks = run_case(tmp_path, **ddp("ddp", max_epochs=1, warmup={"increment": None}))
    sizes = {len(batch) for batch in ranks[0]["epochs"][0][:-1]}
    assert sizes == {2, 3, 4, 5, 6, 7}

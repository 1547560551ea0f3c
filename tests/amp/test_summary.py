"""The start-up table says what happens."""

from functools import partial
from typing import Any

import pytest
from support.engine import Mlp, make_engine, start
from torch import nn
from torch.optim import AdamW, RMSprop

from lightning_mp.amp.summary import bytes_per_parameter, format_table, summary_rows

# An eps that float16 can hold.
_ADAMW = partial(AdamW, eps=1e-4)


def rows_of(level: str, make_optimizer: Any = _ADAMW, readers: Any = (), **kwargs: Any) -> Any:
    model = Mlp()
    engine, _ = start(model, make_optimizer, level, **kwargs)
    return summary_rows(model, engine, kernels="torch", readers=readers)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (
            "O2-fp16",
            {
                "model dtype": "float16",
                "kept in float32": "all norm layers",
                "master weights": "float32",
                "loss scale": "dynamic, starts at 65536",
                "FP32 gradients": "not materialised: unscaled and clipped inside the step",
            },
        ),
        (
            "O2-bf16",
            {"model dtype": "bfloat16", "loss scale": "static 1", "master weights": "float32"},
        ),
        ("O3-fp16", {"kept in float32": "none", "master weights": "none"}),
        (
            "O0",
            {
                "model dtype": "float32",
                "kept in float32": "everything",
                "master weights": "none",
                "bytes per parameter": "weights 4.0 + masters 0.0",
                "FP32 gradients": "as autograd makes them",
            },
        ),
    ],
)
def test_rows(level: str, expected: dict[str, str]) -> None:
    rows = rows_of(level)
    assert rows["opt level"] == level[:2]
    assert rows["kernels"] == "torch"
    assert {name: rows[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("make_optimizer", "readers", "expected"),
    [
        (AdamW, ["Logger"], "materialised before each step, read by Logger"),
        (partial(RMSprop, lr=0.1), [], "materialised before each step, for the step of RMSprop"),
    ],
)
def test_where_gradients_are_materialised(
    make_optimizer: Any, readers: list[str], expected: str
) -> None:
    assert rows_of("O2-bf16", make_optimizer, readers)["FP32 gradients"] == expected


def test_bytes_are_measured() -> None:
    model = nn.Sequential(nn.Linear(7, 7, bias=False), nn.LayerNorm(49, elementwise_affine=True))
    engine = make_engine("O2-bf16")
    engine.convert(model)
    # 49 half weights with masters, 98 FP32 ones without.
    assert bytes_per_parameter(model, engine) == {
        "weights": (49 * 2 + 98 * 4) / 147,
        "masters": 49 * 4 / 147,
    }
    assert bytes_per_parameter(nn.ReLU(), engine) == {"weights": 0.0, "masters": 0.0}


def test_the_table_is_aligned() -> None:
    table = format_table("Title", {"a": "1", "longer": "two"})
    assert table.splitlines() == [
        "Title",
        "------------",
        "a      | 1",
        "longer | two",
        "------------",
    ]

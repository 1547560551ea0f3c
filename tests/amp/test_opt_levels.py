"""Opt levels: the table, overrides, contradictions and precision strings."""

import dataclasses
import io
from types import MappingProxyType

import pytest
import torch

from lightning_mp.amp import (
    OPT_LEVELS,
    PRECISION_LEVELS,
    OptLevelProperties,
    parse_precision,
    resolve_opt_level,
)

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16

TABLE = {
    "O0": OptLevelProperties("O0", FP32, False, None, None, False, 1.0),
    "O1": OptLevelProperties("O1", None, True, None, None, None, "dynamic", FP16),
    "O2": OptLevelProperties("O2", FP16, False, True, True, True, "dynamic"),
    "O3": OptLevelProperties("O3", FP16, False, False, False, False, 1.0),
}


def test_table_is_complete_and_read_only():
    assert dict(OPT_LEVELS) == TABLE
    assert isinstance(OPT_LEVELS, MappingProxyType)
    with pytest.raises(dataclasses.FrozenInstanceError):
        OPT_LEVELS["O2"].master_weights = False


@pytest.mark.parametrize("level", TABLE)
def test_defaults_of_a_level(level):
    assert resolve_opt_level(level) == TABLE[level]


@pytest.mark.parametrize(
    ("level", "cast", "loss_scale"),
    [("O0", FP32, 1.0), ("O2", BF16, 1.0), ("O3", BF16, 1.0)],
)
def test_bfloat16_needs_no_dynamic_scale(level, cast, loss_scale):
    expected = dataclasses.replace(TABLE[level], cast_model_type=cast, loss_scale=loss_scale)
    assert resolve_opt_level(level, half_dtype=BF16) == expected


def test_bfloat16_at_o1():
    expected = dataclasses.replace(TABLE["O1"], function_dtype=BF16, loss_scale=1.0)
    assert resolve_opt_level("O1", half_dtype=BF16) == expected


@pytest.mark.parametrize(
    ("level", "overrides", "changed"),
    [
        ("O2", {"loss_scale": "128.0"}, {"loss_scale": 128.0}),
        ("O2", {"loss_scale": 7}, {"loss_scale": 7.0}),
        ("O3", {"loss_scale": "dynamic"}, {"loss_scale": "dynamic"}),
        ("O3", {"half_dtype": BF16, "loss_scale": 3.0}, {"cast_model_type": BF16, "loss_scale": 3}),
        ("O1", {"loss_scale": 64.0, "patch_torch_functions": True}, {"loss_scale": 64.0}),
        ("O1", {"cast_model_type": False}, {}),
        (
            "O1",
            {"patch_torch_functions": False},
            {"patch_torch_functions": False, "function_dtype": None},
        ),
        ("O2", {"patch_torch_functions": False}, {}),
        ("O2", {"cast_model_type": BF16}, {"cast_model_type": BF16, "loss_scale": 1.0}),
        ("O2", {"half_dtype": BF16, "cast_model_type": FP16}, {}),
        ("O2", {"keep_norms_fp32": False}, {"keep_norms_fp32": False}),
        (
            "O2",
            {"keep_norms_fp32": False, "keep_batchnorm_fp32": True},
            {"keep_norms_fp32": False},
        ),
        (
            "O2",
            {"keep_batchnorm_fp32": False},
            {"keep_batchnorm_fp32": False, "keep_norms_fp32": False},
        ),
        ("O3", {"keep_batchnorm_fp32": "True"}, {"keep_batchnorm_fp32": True}),
        (
            "O3",
            {"keep_norms_fp32": True},
            {"keep_batchnorm_fp32": True, "keep_norms_fp32": True},
        ),
        ("O3", {"master_weights": True}, {"master_weights": True}),
        ("O2", {"master_weights": "False"}, {"master_weights": False}),
        (
            "O2",
            {"cast_model_type": FP32},
            {
                "cast_model_type": FP32,
                "keep_batchnorm_fp32": None,
                "keep_norms_fp32": None,
                "master_weights": False,
            },
        ),
        (
            "O3",
            {"cast_model_type": False},
            {"cast_model_type": None, "keep_batchnorm_fp32": None, "keep_norms_fp32": None},
        ),
        (
            "O0",
            {"cast_model_type": FP16},
            {"cast_model_type": FP16, "keep_batchnorm_fp32": False, "keep_norms_fp32": False},
        ),
        ("O0", {"keep_batchnorm_fp32": True}, {"keep_batchnorm_fp32": True}),
    ],
)
def test_overrides(level, overrides, changed):
    assert resolve_opt_level(level, **overrides) == dataclasses.replace(TABLE[level], **changed)


@pytest.mark.parametrize(
    ("level", "message"),
    [
        ("02", r"opt_level = '02'; allowed are 'O0', 'O1', 'O2', 'O3'; .*letter O.*zero.*'O2'"),
        ("0O", r"letter O, not the digit zero: write 'O0'"),
        ("o2", r"capital letter O.*write 'O2'"),
        ("2", r"write 'O2'"),
        (3, r"opt_level = 3; .*write 'O3'"),
        ("O7", r"opt_level = 'O7'; allowed are .*choose one of these"),
        ("O", r"opt_level = 'O'; allowed are .*choose one of these"),
        ("O2-bf16", r"write 'O2', and name the half dtype apart: by half_dtype"),
        ("", r"opt_level = ''; allowed are"),
        (None, r"opt_level = None; allowed are"),
    ],
)
def test_unknown_level(level, message):
    with pytest.raises(ValueError, match=message):
        resolve_opt_level(level)


@pytest.mark.parametrize(
    ("level", "overrides", "message"),
    [
        ("O2", {"half_dtype": FP32}, r"half_dtype = torch.float32; allowed are .*opt_level='O0'"),
        ("O2", {"half_dtype": "fp16"}, r"half_dtype = 'fp16'; allowed are torch.float16"),
        ("O2", {"patch_torch_functions": True}, r"patch_torch_functions = True at O2; .*O1 only"),
        ("O0", {"patch_torch_functions": True}, r"patch_torch_functions = True at O0"),
        ("O1", {"cast_model_type": FP16}, r"cast_model_type = torch.float16 at O1; .*leave"),
        ("O1", {"keep_batchnorm_fp32": False}, r"keep_batchnorm_fp32 = False at O1"),
        ("O1", {"keep_norms_fp32": True}, r"keep_norms_fp32 = True at O1"),
        ("O1", {"master_weights": False}, r"master_weights = False at O1"),
        (
            "O2",
            {"keep_batchnorm_fp32": False, "keep_norms_fp32": True},
            r"keep_batchnorm_fp32 = False with keep_norms_fp32 = True; .*leave",
        ),
        ("O0", {"master_weights": True}, r"master_weights = True .*cast to float32; .*'O2'"),
        (
            "O2",
            {"cast_model_type": FP32, "master_weights": True},
            r"master_weights = True where the model is cast to float32",
        ),
        (
            "O3",
            {"cast_model_type": False, "master_weights": True},
            r"master_weights = True where the model is cast to nothing",
        ),
        ("O2", {"cast_model_type": torch.int8}, r"cast_model_type = torch.int8; allowed are"),
        ("O2", {"cast_model_type": torch.float64}, r"cast_model_type = torch.float64"),
        ("O2", {"keep_batchnorm_fp32": "yes"}, r"keep_batchnorm_fp32 = 'yes'; allowed are True"),
        ("O2", {"master_weights": 1}, r"master_weights = 1; allowed are True"),
        ("O2", {"loss_scale": "abc"}, r"loss_scale = 'abc'; allowed are 'dynamic'"),
    ],
)
def test_contradictions(level, overrides, message):
    with pytest.raises(ValueError, match=message):
        resolve_opt_level(level, **overrides)


@pytest.mark.parametrize(
    ("level", "half_dtype", "expected"),
    [("O0", FP16, None), ("O1", BF16, None), ("O2", FP16, FP16), ("O3", BF16, BF16)],
)
def test_half_dtype(level, half_dtype, expected):
    assert resolve_opt_level(level, half_dtype=half_dtype).half_dtype is expected


@pytest.mark.parametrize(("level", "expected"), [("O0", False), ("O1", True), ("O2", True)])
def test_is_dynamic(level, expected):
    assert resolve_opt_level(level).is_dynamic is expected


def test_description_survives_a_safe_load():
    description = resolve_opt_level("O2").describe()
    assert description == {
        "opt_level": "O2",
        "cast_model_type": "float16",
        "patch_torch_functions": False,
        "keep_batchnorm_fp32": True,
        "keep_norms_fp32": True,
        "master_weights": True,
        "loss_scale": "dynamic",
        "function_dtype": None,
    }
    at_o1 = resolve_opt_level("O1", half_dtype=BF16).describe()
    assert (at_o1["cast_model_type"], at_o1["function_dtype"]) == (None, "bfloat16")
    file = io.BytesIO()
    torch.save(description, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == description


@pytest.mark.parametrize(
    ("precision", "level", "half_dtype"),
    [
        ("O0", "O0", FP16),
        ("O1", "O1", FP16),
        ("O1-bf16", "O1", BF16),
        ("O2", "O2", FP16),
        ("O2-bf16", "O2", BF16),
        ("O3", "O3", FP16),
        ("O3-bf16", "O3", BF16),
    ],
)
def test_parse_precision(precision, level, half_dtype):
    assert precision in PRECISION_LEVELS
    assert parse_precision(precision) == (level, half_dtype)


def test_every_precision_level_resolves():
    for precision in PRECISION_LEVELS:
        level, half_dtype = parse_precision(precision)
        assert resolve_opt_level(level, half_dtype=half_dtype).opt_level == level


@pytest.mark.parametrize(
    ("precision", "message"),
    [
        ("O7", r"precision = 'O7'; allowed are 'O0', 'O1', 'O1-bf16', 'O2', 'O2-bf16', 'O3', "),
        ("02-bf16", r"letter O, not the digit zero: write 'O2-bf16'"),
        ("o3", r"write 'O3'"),
        ("O2_bf16", r"write 'O2-bf16'"),
        ("o1bfloat16", r"write 'O1-bf16'"),
        (" O2", r"write 'O2'"),
        ("O2-fp16", r"write 'O2'"),
        ("O2-fp8", r"choose one of these"),
        ("O0-bf16", r"choose one of these"),
        (16, r"precision = 16; allowed are"),
    ],
)
def test_bad_precision(precision, message):
    with pytest.raises(ValueError, match=message):
        parse_precision(precision)

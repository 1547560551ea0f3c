"""The tolerances of all tests, in one place."""

from typing import Any

import torch

# Unit roundoff of each dtype: largest relative error of one rounding.
ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-11}

# Two orders of the same FP32 operations (foreach, fused): a few roundings apart per step.
SAME_MATHS: dict[str, Any] = {"rtol": 1e-6, "atol": 3e-7}

# The same over a dozen steps of half training: a rounding of a half weight may fall the other way.
SAME_MATHS_TRAINED: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-4}

# Half training against FP32 training over some dozen steps of a small model.
HALF_TRAINING: dict[str, Any] = {"rtol": 5e-2, "atol": 2e-2}

# One forward, or a few, in half against FP32, or against another order of the same in half.
HALF_STEP: dict[str, Any] = {"rtol": 2e-2, "atol": 6e-3}

# Gradients that went through a recurrence in half, summed over its time steps.
HALF_RECURRENCE: dict[str, Any] = {"rtol": 5e-2, "atol": 5e-2}

# FP32 against a formula in double precision, over some hundred elements and a few steps.
FORMULA: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}

# An exact result of values that were rounded to half on the way in.
HALF_INPUT: dict[str, Any] = {"rtol": 1e-3, "atol": 0.0}

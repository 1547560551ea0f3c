"""The levels that every integration test goes through."""

import torch
from torch import nn

from lightning_mp.precision import AmpPrecision
from support.tolerances import HALF_TRAINING
from support.training import is_equal, make_plugin, weights

INTEGRATION_LEVELS = ["O0", "O1", "O1-bf16", "O2", "O2-bf16", "O3", "O3-bf16"]


def make_steady_plugin(level: str) -> AmpPrecision:
    """Build the plugin of a level whose dynamic scale starts low enough for no step to be lost."""
    is_dynamic = make_plugin(level).engine.properties.is_dynamic
    return make_plugin(level, init_scale=2.0**8) if is_dynamic else make_plugin(level)


def assert_follows_fp32(module: nn.Module, reference: nn.Module, level: str) -> None:
    """Check trained weights against those of the same run in 32-true; at O0 bit for bit."""
    found, expected = weights(module), weights(reference)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, **HALF_TRAINING)
    if level == "O0":
        assert is_equal(found, expected)

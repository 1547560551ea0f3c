"""The levels that every integration test goes through."""

from lightning_mp.precision import AmpPrecision
from support.training import make_plugin

INTEGRATION_LEVELS = ["O0", "O1", "O1-bf16", "O2", "O2-bf16", "O3", "O3-bf16"]


def make_steady_plugin(level: str) -> AmpPrecision:
    """Build the plugin of a level whose dynamic scale starts low enough for no step to be lost."""
    is_dynamic = make_plugin(level).engine.properties.is_dynamic
    return make_plugin(level, init_scale=2.0**8) if is_dynamic else make_plugin(level)

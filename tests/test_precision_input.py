import typing

import pytest
from lightning.pytorch.plugins import DoublePrecision
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy

from lightning_mp.amp.opt_levels import PRECISION_LEVELS
from lightning_mp.checkpoint_io import AtomicCheckpointIO
from lightning_mp.fabric_precision import AmpFabricPrecision
from lightning_mp.precision import AmpPrecision
from lightning_mp.precision_input import PrecisionLevel, resolve_fabric_precision, resolve_precision


def test_type_hint_names_exactly_the_levels():
    assert typing.get_args(PrecisionLevel) == PRECISION_LEVELS


@pytest.mark.parametrize(
    ("precision", "opt_level", "half_dtype"),
    [
        ("O1", "O1", "fp16"),
        ("O1-bf16", "O1", "bf16"),
        ("O2", "O2", "fp16"),
        ("O2-bf16", "O2", "bf16"),
        ("O3", "O3", "fp16"),
        ("O3-bf16", "O3", "bf16"),
    ],
)
def test_half_levels_become_a_plugin(precision, opt_level, half_dtype):
    left, plugins = resolve_precision(precision, None)
    assert left is None
    plugin, checkpoint_io = plugins
    assert type(plugin) is AmpPrecision
    assert type(checkpoint_io) is AtomicCheckpointIO
    assert (plugin.opt_level, plugin.half_dtype) == (opt_level, half_dtype)


def test_o0_becomes_a_plugin():
    left, (plugin, _) = resolve_precision("O0", None)
    assert left is None
    assert plugin.opt_level == "O0"


@pytest.mark.parametrize(
    "precision", [None, 64, 32, "16-mixed", "bf16-true", "32", "nonsense", "0", "", "2", 2]
)
def test_everything_else_is_left_to_lightning(precision):
    plugins = [TorchCheckpointIO()]
    left, kept = resolve_precision(precision, plugins)
    assert left is precision
    assert kept == plugins
    assert resolve_precision(precision, None) == (precision, None)


@pytest.mark.parametrize(
    "precision",
    ["O7", "02", "o2", "00", "o3-bf16", "O2-fp8", "O2-", "O22", "O2_bf16", "O2bf16", " O2", "O-2"],
)
def test_near_misses_name_the_allowed_set_and_the_letter(precision):
    with pytest.raises(ValueError, match=r"O2-bf16.*letter O") as error:
        resolve_precision(precision, None)
    assert repr(precision) in str(error.value)


def test_fabric_gets_its_own_plugin():
    left, (plugin, checkpoint_io) = resolve_fabric_precision("O2-bf16", None)
    assert left is None
    assert type(plugin) is AmpFabricPrecision
    assert type(checkpoint_io) is AtomicCheckpointIO
    assert plugin.precision == "O2-bf16"


@pytest.mark.parametrize(
    ("resolve", "plugin"),
    [
        (resolve_precision, AmpPrecision("O1", allow_banned=True)),
        (resolve_fabric_precision, AmpFabricPrecision("O1", allow_banned=True)),
    ],
)
def test_a_plugin_may_be_the_precision(resolve, plugin):
    checkpoint_io = TorchCheckpointIO()
    left, plugins = resolve(plugin, checkpoint_io)
    assert left is None
    assert plugins == [checkpoint_io, plugin]
    with pytest.raises(ValueError, match=r"precision = Amp\w*\(.*\) and plugins = \[.*Double"):
        resolve(plugin, DoublePrecision())
    with pytest.raises(ValueError, match="strategy = 'fsdp' with an opt level"):
        resolve(plugin, None, "fsdp")


def test_a_plugin_as_the_precision_of_the_wrong_host_is_refused():
    with pytest.raises(
        TypeError, match=r"AmpFabricPrecision\(...\) with Trainer; allowed: AmpPrec"
    ):
        resolve_precision(AmpFabricPrecision("O2"), None)
    with pytest.raises(TypeError, match=r"AmpPrecision\(...\) with Fabric; allowed: AmpFabricPrec"):
        resolve_fabric_precision(AmpPrecision("O2"), None)


@pytest.mark.parametrize("make", [list, tuple, iter, lambda plugins: plugins[0]])
def test_other_plugins_are_kept_in_a_new_list(make):
    checkpoint_io = TorchCheckpointIO()
    given = [checkpoint_io]
    _, plugins = resolve_precision("O2", make(given))
    assert plugins[0] is checkpoint_io
    assert isinstance(plugins[1], AmpPrecision)
    assert given == [checkpoint_io]


def test_iterator_without_a_level_is_not_used_up():
    checkpoint_io = TorchCheckpointIO()
    assert resolve_precision("32-true", iter([checkpoint_io])) == ("32-true", [checkpoint_io])


@pytest.mark.parametrize("plugin", [AmpPrecision("O3"), DoublePrecision()])
@pytest.mark.parametrize("as_list", [True, False])
def test_string_and_precision_plugin_are_refused_together(plugin, as_list):
    plugins = [plugin] if as_list else plugin
    with pytest.raises(ValueError, match=r"precision = 'O2' and plugins = .*Precision.*drop one"):
        resolve_precision("O2", plugins)


@pytest.mark.parametrize(
    ("strategy", "shown"),
    [
        ("fsdp", "'fsdp'"),
        ("FSDP_cpu_offload", "'FSDP_cpu_offload'"),
        ("deepspeed_stage_2", "'deepspeed_stage_2'"),
        ("xla", "'xla'"),
        (FSDPStrategy(), "FSDPStrategy"),
    ],
)
@pytest.mark.parametrize(
    ("precision", "plugins"), [("O2", None), (None, AmpPrecision()), (None, [AmpPrecision()])]
)
def test_strategies_with_their_own_precision_are_refused(strategy, shown, precision, plugins):
    with pytest.raises(ValueError, match=f"strategy = {shown} with an opt level; allowed: .*ddp"):
        resolve_precision(precision, plugins, strategy)


@pytest.mark.parametrize("strategy", [None, "auto", "ddp", "ddp_fork", "unknown", DDPStrategy()])
def test_other_strategies_pass(strategy):
    _, plugins = resolve_precision("O2", None, strategy)
    assert [type(plugin) for plugin in plugins] == [AmpPrecision, AtomicCheckpointIO]


def test_strategies_without_a_level_pass():
    assert resolve_precision("bf16-true", None, "fsdp") == ("bf16-true", None)

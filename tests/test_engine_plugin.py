"""Which wins on resume, a checkpoint or the arguments; agreement of ranks."""

import pytest
from support.fabric import make_fabric_plugin
from support.training import SmallModule, make_loader, make_plugin, make_trainer

MOVED = {"loss_scale": 32.0, "growth_tracker": 5, "skipped_steps": 3}
MAKERS = [make_plugin, make_fabric_plugin]


def moved_state(plugin):
    """The state of a plugin after some steps: what can move has moved."""
    state = plugin.state_dict()
    return state | (MOVED if state["is_dynamic"] else {"skipped_steps": 3})


@pytest.mark.parametrize(
    ("saved", "present", "scale", "tracker", "changes"),
    [
        # The moving scale and its tracker are the checkpoint's.
        (("O2", {}), ("O2", {}), 32.0, 5, None),
        (("O1", {}), ("O1", {"init_scale": 512.0}), 32.0, 5, None),
        (("O2", {}), ("O2", {"growth_interval": 7, "hysteresis": 2}), 32.0, 5, None),
        (("O2", {}), ("O2", {"min_loss_scale": 64.0}), 64.0, 5, None),
        # What the user's string or arguments say is this run's.
        (("O1", {}), ("O2", {}), 32.0, 5, "opt_level: O1 -> O2"),
        (("O2", {}), ("O2-bf16", {}), 1.0, 0, "cast_model_type: float16 -> bfloat16"),
        (("O2", {}), ("O2-bf16", {}), 1.0, 0, "loss_scale: dynamic -> 1.0"),
        (("O2-bf16", {}), ("O2", {"init_scale": 512.0}), 512.0, 0, "loss_scale: 1.0 -> dynamic"),
        (("O1-bf16", {}), ("O1", {}), 2.0**16, 0, "function_dtype: bfloat16 -> float16"),
        (("O2", {"loss_scale": 128.0}), ("O2", {}), 2.0**16, 0, "loss_scale: 128.0 -> dynamic"),
        (("O2", {}), ("O2", {"loss_scale": 128.0}), 128.0, 0, "loss_scale: dynamic -> 128.0"),
        (("O3", {}), ("O3", {"loss_scale": 8.0}), 8.0, 0, "loss_scale: 1.0 -> 8.0"),
        (("O2", {}), ("O2", {"keep_norms_fp32": False}), 32.0, 5, "keep_norms_fp32: True -> False"),
        (("O2", {}), ("O0", {}), 1.0, 0, "master_weights: True -> False"),
    ],
)
@pytest.mark.parametrize("make", MAKERS)
def test_what_wins_on_resume(make, saved, present, scale, tracker, changes):
    state = moved_state(make(saved[0], **saved[1]))
    plugin = make(present[0], **present[1])
    properties = plugin.engine.properties
    if changes is None:
        plugin.load_state_dict(state)
    else:
        with pytest.warns(UserWarning, match=f"made with other .*{changes}") as caught:
            plugin.load_state_dict(state)
        assert len(caught) == 1
    assert plugin.engine.properties is properties
    assert plugin.loss_scale == scale
    assert plugin.state_dict()["growth_tracker"] == tracker
    assert plugin.skipped_steps == 3


def test_a_change_is_reported_once_in_a_fit(tmp_path):
    trainer = make_trainer(tmp_path, "O2")
    trainer.fit(SmallModule(), make_loader())
    trainer.save_checkpoint(tmp_path / "c.ckpt")
    with pytest.warns(UserWarning, match="cast_model_type: float16 -> bfloat16") as caught:
        make_trainer(tmp_path, "O2-bf16", max_epochs=3).fit(
            SmallModule(), make_loader(), ckpt_path=tmp_path / "c.ckpt"
        )
    assert sum("other precision properties" in str(item.message) for item in caught) == 1


@pytest.mark.parametrize("num_losses", [1, 2])
@pytest.mark.parametrize("make", MAKERS)
def test_ranks_take_the_scale_of_rank_0(make, num_losses):
    first, other = make("O2", num_losses=num_losses), make("O2", num_losses=num_losses)
    for index, scaler in enumerate(first.engine.scalers):
        scaler.load_state_dict(MOVED | {"loss_scale": 2.0 ** (5 + index)})
    sent = []
    first.agree(lambda value: sent.append(value) or value)
    other.agree(lambda value: sent[0])
    assert other.loss_scales == first.loss_scales == (32.0, 64.0)[:num_losses]
    assert other.state_dict() == first.state_dict()


@pytest.mark.parametrize(
    ("level", "arguments", "message"),
    [
        ("O1", {}, "opt_level = 'O1', rank 0 'O2'"),
        ("O2-bf16", {}, "cast_model_type = 'bfloat16', rank 0 'float16'"),
        ("O2", {"loss_scale": 8.0}, r"loss_scale = 8\.0, rank 0 'dynamic'"),
        ("O2", {"init_scale": 8.0}, r"init_scale = 8\.0, rank 0 65536\.0"),
        ("O2", {"growth_interval": 7}, "growth_interval = 7, rank 0 2000"),
        ("O2", {"num_losses": 2}, "num_losses = 2, rank 0 1"),
        ("O2", {"keep_norms_fp32": False}, "keep_norms_fp32 = False, rank 0 True"),
    ],
)
@pytest.mark.parametrize("make", MAKERS)
def test_a_rank_with_other_arguments_is_refused(make, level, arguments, message):
    sent = []
    make("O2").agree(lambda value: sent.append(value) or value)
    plugin = make(level, **arguments)
    before = plugin.state_dict()
    with pytest.raises(RuntimeError, match=f"{message}.*Give every rank the same arguments"):
        plugin.agree(lambda value: sent[0])
    assert plugin.state_dict() == before

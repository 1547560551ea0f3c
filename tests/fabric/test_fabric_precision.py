"""AmpFabricPrecision in loops of the stock Fabric."""

import copy
import gc
import weakref

import pytest
import torch
from support.engine import Mlp, make_batches
from support.fabric import make_adam, make_fabric, make_fabric_plugin, start, train
from support.tolerances import HALF_INPUT, HALF_TRAINING
from support.training import is_equal, weights
from torch import nn
from torch.nn import functional as F

import lightning_mp
from lightning_mp.connector import is_installed
from lightning_mp.fabric_precision import AmpFabricPrecision

CAST_LEVELS = ["O1", "O1-bf16"]
MASTER_LEVELS = ["O2", "O2-bf16"]
LEVELS = ["O0", *CAST_LEVELS, *MASTER_LEVELS, "O3", "O3-bf16"]


def follows(first, second):
    for name, value in weights(first).items():
        torch.testing.assert_close(value, weights(second)[name], **HALF_TRAINING)


@pytest.fixture
def unpatched():
    was_installed = is_installed()
    lightning_mp.uninstall()
    yield
    (lightning_mp.install if was_installed else lightning_mp.uninstall)()


def make_sgd(parameters):
    return torch.optim.SGD(parameters, lr=5e-2, momentum=0.9)


@pytest.mark.parametrize(
    ("level", "make_optimizer"),
    [
        (level, make_optimizer)
        for level in LEVELS
        for make_optimizer in (make_adam, make_sgd)
        # The eps of Adam is 0 in fp16, where O3 steps.
        if (level, make_optimizer) != ("O3", make_adam)
    ],
)
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("clip", [None, {"max_norm": 0.3}, {"clip_val": 0.02}])
def test_levels_follow_fp32(level, make_optimizer, accumulate, clip):
    reference = start("32-true", make_optimizer)
    losses = train(*reference, accumulate=accumulate, clip=clip)
    fabric, model, optimizer = start(level, make_optimizer)
    assert losses == pytest.approx(
        train(fabric, model, optimizer, accumulate=accumulate, clip=clip),
        rel=HALF_TRAINING["rtol"],
    )
    follows(model, reference[1])
    assert fabric.strategy.precision.precision == level
    assert fabric.strategy.precision.skipped_steps == 0
    assert {item.dtype for item in model.state_dict().values()} == {torch.float32}


def test_o0_equals_fp32():
    reference = start("32-true")
    tested = start("O0")
    clip = {"max_norm": 0.3}
    assert train(*tested, clip=clip) == train(*reference, clip=clip)
    assert is_equal(weights(tested[1]), weights(reference[1]))


@pytest.mark.parametrize("level", [*CAST_LEVELS, *MASTER_LEVELS])
def test_setting_up_apart_equals_setting_up_together(level):
    together = start(level)
    fabric = make_fabric(level)
    model = fabric.setup_module(Mlp())
    optimizer = fabric.setup_optimizers(make_adam(model.parameters()))
    assert train(fabric, model, optimizer) == train(*together)
    assert is_equal(weights(model), weights(together[1]))


@pytest.mark.parametrize("level", [*CAST_LEVELS, *MASTER_LEVELS])
def test_without_patches_the_plugin_alone_does_the_same(unpatched, level):
    lightning_mp.install()
    reference = start(level)
    losses = train(*reference, accumulate=2)
    lightning_mp.uninstall()
    tested = start(make_fabric_plugin(level))
    assert train(*tested, accumulate=2) == losses
    assert is_equal(weights(tested[1]), weights(reference[1]))


@pytest.mark.parametrize("level", [*CAST_LEVELS, *MASTER_LEVELS])
def test_overflow_skips_and_halves(level):
    plugin = make_fabric_plugin(level, loss_scale="dynamic", init_scale=1024.0, growth_interval=3)
    fabric, model, optimizer = start(plugin)
    train(fabric, model, optimizer, make_batches(1), bad_batches=(0,))
    assert is_equal(weights(model), weights(Mlp()))
    train(fabric, model, optimizer, make_batches(7), bad_batches=(3,))
    assert plugin.skipped_steps == 2
    assert plugin.loss_scale == 1024.0  # halved twice, doubled twice after three good steps
    records = plugin.overflows(wait=True)
    assert [(record.step, record.scale, record.new_scale) for record in records] == [
        (0, 1024.0, 512.0),
        (4, 1024.0, 512.0),
    ]
    assert "first.weight" in records[0].parameter_names


def test_clipping_at_an_overflow():
    fabric, model, optimizer = start("O2")
    with pytest.raises(RuntimeError, match="non-finite"):
        train(fabric, model, optimizer, clip={"max_norm": 0.3}, bad_batches=(0,))
    optimizer.zero_grad()
    clip = {"max_norm": 0.3, "error_if_nonfinite": False}
    train(fabric, model, optimizer, clip=clip, bad_batches=(1,))
    assert fabric.strategy.precision.skipped_steps == 1
    assert all(item.isfinite().all() for item in weights(model).values())


@pytest.mark.parametrize("level", [*CAST_LEVELS, *MASTER_LEVELS])
@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
def test_clip_returns_the_true_norm(level, norm_type):
    norms = []
    for precision in ("32-true", make_fabric_plugin(level, loss_scale=2.0**10)):
        fabric, model, optimizer = start(precision)
        inputs, targets = make_batches(1)[0]
        fabric.backward(F.mse_loss(model(inputs), targets))
        norms.append(fabric.clip_gradients(model, optimizer, max_norm=0.1, norm_type=norm_type))
        clipped = nn.utils.get_total_norm([p.grad for p in model.parameters()], norm_type)
        assert float(clipped) == pytest.approx(0.1, rel=HALF_INPUT["rtol"])
    assert norms[1].dtype == torch.float32
    assert float(norms[1]) == pytest.approx(float(norms[0]), rel=HALF_TRAINING["rtol"])


@pytest.mark.parametrize("level", [*CAST_LEVELS, *MASTER_LEVELS])
def test_gradients_written_after_unscaling_count(level):
    fabric, model, optimizer = start(level, make_sgd)
    inputs, targets = make_batches(1)[0]
    fabric.backward(F.mse_loss(model(inputs), targets))
    fabric.strategy.precision.unscale_gradients(optimizer)
    for parameter in model.parameters():
        assert parameter.grad.dtype == torch.float32
        parameter.grad.zero_()
    optimizer.step()
    assert is_equal(weights(model), weights(Mlp()))


@pytest.mark.parametrize("level", ["32-true", *LEVELS])
def test_step_with_a_closure(level):
    fabric, model, optimizer = start(level, make_sgd)
    reference = start(level, make_sgd)
    losses = []
    for inputs, targets in make_batches(5):

        def closure(inputs=inputs, targets=targets):
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            fabric.backward(loss)
            return loss

        losses.append(float(optimizer.step(closure).detach()))
    assert losses == train(*reference, make_batches(5))
    assert is_equal(weights(model), weights(reference[1]))


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_at_a_static_scale(line_search):
    def make_lbfgs(parameters):
        return torch.optim.LBFGS(parameters, lr=0.1, line_search_fn=line_search)

    torch.manual_seed(1)
    # The same function at each evaluation, which Mlp is not.
    net = nn.Sequential(nn.Linear(13, 17), nn.Tanh(), nn.Linear(17, 3))
    fabric, model, optimizer = start("O2-bf16", make_lbfgs, net)
    inputs, targets = make_batches(1)[0]
    losses = []

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        fabric.backward(loss)
        losses.append(float(loss.detach()))
        return loss

    for _ in range(3):
        optimizer.step(closure)
    assert len(losses) > 3
    assert losses[-1] < 0.7 * losses[0]


def gan(precision, bad_batches=()):
    torch.manual_seed(1)
    generator = nn.Sequential(nn.Linear(5, 17), nn.ReLU(), nn.Linear(17, 13))
    critic = nn.Sequential(nn.Linear(13, 17), nn.ReLU(), nn.Linear(17, 1))
    fabric = make_fabric(precision)
    generator, first = fabric.setup(generator, torch.optim.Adam(generator.parameters(), lr=1e-3))
    critic, second = fabric.setup(critic, torch.optim.Adam(critic.parameters(), lr=1e-3))
    for index, (real, _) in enumerate(make_batches(8)):
        noise = torch.randn(7, 5, generator=torch.Generator().manual_seed(index))
        first.zero_grad()
        fabric.backward(F.softplus(-critic(generator(noise))).mean())
        first.step()
        second.zero_grad()
        loss = (
            F.softplus(-critic(real)).mean() + F.softplus(critic(generator(noise).detach())).mean()
        )
        fabric.backward(loss * float("inf") if index in bad_batches else loss)
        second.step()
    return fabric.strategy.precision, generator, critic


@pytest.mark.parametrize("level", [*CAST_LEVELS, *MASTER_LEVELS])
def test_two_models_set_up_one_after_the_other(level):
    _, *reference = gan("32-true")
    plugin, *tested = gan(level)
    for model, plain in zip(tested, reference, strict=True):
        follows(model, plain)
    assert plugin.skipped_steps == 0


def test_overflow_of_one_optimizer_skips_that_one_only():
    plugin, generator, critic = gan("O2", bad_batches=range(8))
    torch.manual_seed(1)
    before = [nn.Linear(5, 17), nn.Linear(17, 13), nn.Linear(13, 17), nn.Linear(17, 1)]
    assert plugin.skipped_steps == 8
    assert not torch.equal(weights(generator)["0.weight"], before[0].weight)
    assert torch.equal(weights(critic)["0.weight"], before[2].weight)


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_what_runs_beside_the_forward(level):
    class Scored(Mlp):
        def score(self, x):
            return self(x).square()

        def embed(self, x):
            return self.first(x)

    fabric = make_fabric(level)
    model = fabric.setup(Scored())
    inputs = make_batches(1)[0][0]
    model.mark_forward_method("score")
    assert model(inputs).dtype == torch.float32
    assert model.score(inputs).dtype == torch.float32
    with fabric.autocast():
        assert model.embed(inputs).dtype == model.first.weight.dtype != torch.float32


@pytest.mark.parametrize("level", [*LEVELS[:5], "O3-bf16"])
@pytest.mark.parametrize("before_setup", [False, True])
def test_save_and_load_resume_exactly(tmp_path, level, before_setup):
    def plugin():
        is_dynamic = level in ("O1", "O2")
        scale = {"init_scale": 2.0**12, "growth_interval": 3} if is_dynamic else {}
        return make_fabric_plugin(level, **scale)

    whole = plugin()
    fabric, model, optimizer = start(whole)
    first = train(fabric, model, optimizer, bad_batches=(2,))
    path = tmp_path / "c.ckpt"
    fabric.save(path, {"model": model, "optimizer": optimizer, "precision": whole, "epoch": 3})
    saved = torch.load(path, weights_only=True)
    assert {value.dtype for value in saved["model"].values()} == {torch.float32}
    if not level.startswith("O3"):
        moments = [v for state in saved["optimizer"]["state"].values() for v in state.values()]
        assert {value.dtype for value in moments} == {torch.float32}
    second = train(fabric, model, optimizer)
    expected = weights(model)

    resumed, fresh = plugin(), Mlp(seed=2)
    fabric = make_fabric(resumed)
    if before_setup:
        fresh.load_state_dict(saved["model"])
    model, optimizer = fabric.setup(fresh, make_adam(fresh.parameters()))
    state = {"model": model, "optimizer": optimizer, "precision": resumed, "epoch": 0}
    assert fabric.load(path, state) == {}
    assert state["epoch"] == 3
    model.module.num_calls = 8
    assert train(fabric, model, optimizer) == second
    assert first != second
    assert is_equal(weights(model), expected)
    assert resumed.state_dict() == whole.state_dict()


def test_optimizer_state_loaded_before_setup_is_kept(tmp_path):
    fabric, model, optimizer = start("O2")
    train(fabric, model, optimizer)
    state, values = copy.deepcopy(optimizer.state_dict()), weights(model)
    losses = train(fabric, model, optimizer)
    other = Mlp(seed=2)
    other.load_state_dict(values)
    other.num_calls = 8
    plain = make_adam(other.parameters())
    plain.load_state_dict(state)
    plugin = fabric.strategy.precision
    fabric = make_fabric("O2")
    model, optimizer = fabric.setup(other, plain)
    fabric.strategy.precision.load_state_dict(plugin.state_dict())
    assert train(fabric, model, optimizer) == losses


def test_state_that_was_rounded_is_refused(unpatched):
    fabric, model, optimizer = start(make_fabric_plugin("O2"))
    train(fabric, model, optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    late, attached = start(make_fabric_plugin("O2")), start(make_fabric_plugin("O2"))
    late[2].load_state_dict(copy.deepcopy(state))
    with pytest.raises(RuntimeError, match=r"state of AdamW is in torch\.float16.*attach"):
        train(*late)
    attached[0].strategy.precision.attach(attached[2].optimizer)
    attached[2].load_state_dict(state)
    train(*attached)


def test_optimizer_that_makes_its_state_at_once():
    fabric = make_fabric("O2")
    model = fabric.setup_module(Mlp())
    optimizer = fabric.setup_optimizers(torch.optim.Adagrad(model.parameters(), lr=1e-2))
    train(fabric, model, optimizer)
    dtypes = {value.dtype for state in optimizer.state.values() for value in state.values()}
    assert dtypes == {torch.float32}


def test_teardown_gives_everything_back():
    fabric, model, optimizer = start("O2-bf16")
    train(fabric, model, optimizer)
    expected = weights(model)
    fabric.strategy.teardown()
    assert {item.dtype for item in model.parameters()} == {torch.float32}
    assert is_equal(weights(model), expected)
    optimizer.optimizer.step()


def test_nothing_holds_a_finished_run():
    fabric, model, optimizer = start("O2")
    train(fabric, model, optimizer)
    plugin = weakref.ref(fabric.strategy.precision)
    assert isinstance(plugin(), AmpFabricPrecision)
    del fabric, model, optimizer
    gc.collect()
    assert plugin() is None


@pytest.mark.parametrize("level", CAST_LEVELS)
def test_o1_casts_the_forward_only(level):
    fabric, model, _ = start(level)
    half = torch.bfloat16 if level.endswith("bf16") else torch.float16
    inputs = make_batches(1)[0][0]
    seen = []
    model.first.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    assert model(inputs).dtype == torch.float32
    assert seen == [half]
    assert F.linear(inputs, model.first.weight).dtype == torch.float32
    with fabric.autocast():
        assert F.linear(inputs, model.first.weight).dtype == half


def test_bare_step_is_refused():
    _, model, optimizer = start("O2")
    model(make_batches(1)[0][0]).sum().square()
    with pytest.raises(RuntimeError, match="step"):
        optimizer.optimizer.step()


def test_optimizer_before_its_model_is_refused():
    fabric = make_fabric("O2")
    with pytest.raises(RuntimeError, match=r"AdamW was set up before its model.*setup_module"):
        fabric.setup_optimizers(make_adam(Mlp().parameters()))


def test_closure_evaluating_optimizer_with_dynamic_scale_is_refused():
    with pytest.raises(ValueError, match=r"LBFGS.*AmpFabricPrecision\(loss_scale=1\.0\)"):
        start("O2", torch.optim.LBFGS)


def test_half_model_is_refused():
    model = Mlp().half()
    with pytest.raises(ValueError, match=r"'first\.weight' has dtype torch\.float16"):
        start("O2", model=model)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"opt_level": "02"}, "letter O"),
        ({"half_dtype": "fp8"}, "half_dtype = 'fp8'"),
        ({"loss_scale": -1.0}, r"-1\.0"),
        ({"opt_level": "O0", "master_weights": True}, "master_weights"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        AmpFabricPrecision(**arguments)

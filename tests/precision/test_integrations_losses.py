"""Losses and optimizers that go through the backward in their own way, at each level."""

import pytest
import torch
from support.levels import INTEGRATION_LEVELS, assert_follows_fp32, make_steady_plugin
from support.tolerances import HALF_TRAINING
from support.training import SmallModule, make_loader, make_plugin, make_trainer
from torch import nn
from torch.nn import functional as F


class Penalised(SmallModule):
    """A regression with a penalty on the gradient of its output by its input."""

    def __init__(self, **kwargs):
        super().__init__("SGD", lr=0.05, norm="none", **kwargs)
        self.norms = []

    def training_step(self, batch, batch_idx):
        inputs = batch[0].clone().requires_grad_()
        output = self(inputs)
        (slope,) = torch.autograd.grad(output.sum(), inputs, create_graph=True)
        norm = slope.float().norm(dim=1)
        self.norms.append(norm.detach().clone())
        return F.mse_loss(output, batch[1]) + (norm - 1).square().mean()


class WassersteinGAN(SmallModule):
    """A critic with a gradient penalty between real and made images, in manual optimisation."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.automatic_optimization = False
        self.net = nn.Identity()
        self.generator = nn.Sequential(nn.Linear(5, 17), nn.ReLU(), nn.Linear(17, 13))
        self.critic = nn.Sequential(nn.Linear(13, 17), nn.Tanh(), nn.Linear(17, 1))
        self.penalties = []

    def configure_optimizers(self):
        return [
            torch.optim.SGD(self.generator.parameters(), lr=1e-2),
            torch.optim.SGD(self.critic.parameters(), lr=1e-2),
        ]

    def training_step(self, batch, batch_idx):
        by_generator, by_critic = self.optimizers()
        real = batch[0]
        drawn = torch.Generator().manual_seed(batch_idx)
        noise = torch.randn(len(real), 5, generator=drawn)
        made = self.generator(noise).detach()
        share = torch.rand(len(real), 1, generator=drawn)
        loss = self.critic(made).mean() - self.critic(real).mean()
        loss = loss + 10 * self._penalty((share * real + (1 - share) * made).detach())
        self._update(by_critic, loss)
        self._update(by_generator, -self.critic(self.generator(noise)).mean())

    def _penalty(self, between):
        between.requires_grad_()
        output = self.critic(between)
        (slope,) = torch.autograd.grad(
            output, between, torch.ones_like(output), create_graph=True, retain_graph=True
        )
        penalty = (slope.float().norm(dim=1) - 1).square().mean()
        self.penalties.append(float(penalty.detach()))
        return penalty

    def _update(self, optimizer, loss):
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()


def fit(folder, precision, module, loader=None, **kwargs):
    trainer = make_trainer(folder, precision, **kwargs)
    trainer.fit(module, loader or make_loader())
    return module, trainer


@pytest.mark.parametrize("level", INTEGRATION_LEVELS)
def test_gradient_penalty_follows_fp32(tmp_path, level):
    expected, _ = fit(tmp_path, "32-true", Penalised(), max_epochs=2)
    found, trainer = fit(tmp_path, level, Penalised(), max_epochs=2)
    # The inner gradients are the true ones, whatever the loss scale is.
    torch.testing.assert_close(torch.cat(found.norms), torch.cat(expected.norms), **HALF_TRAINING)
    assert trainer.precision_plugin.skipped_steps == 0
    assert_follows_fp32(found, expected, level)


@pytest.mark.parametrize("level", INTEGRATION_LEVELS)
def test_wasserstein_gan_with_penalty_follows_fp32(tmp_path, level):
    expected, _ = fit(tmp_path, "32-true", WassersteinGAN(), max_epochs=2)
    # The usual first scale is too high for the penalty.
    found, trainer = fit(tmp_path, make_steady_plugin(level), WassersteinGAN(), max_epochs=2)
    torch.testing.assert_close(
        torch.tensor(found.penalties), torch.tensor(expected.penalties), **HALF_TRAINING
    )
    assert trainer.precision_plugin.skipped_steps == 0
    assert_follows_fp32(found, expected, level)


@pytest.mark.parametrize("loss_scale", [1.0, 128.0])
@pytest.mark.parametrize("level", INTEGRATION_LEVELS)
def test_lbfgs_at_a_static_scale_lowers_the_loss(tmp_path, level, loss_scale):
    def train(precision):
        module = SmallModule("LBFGS", lr=0.1, max_iter=4, history_size=7)
        # All data in one batch: else a rounding apart grows from step to step.
        return fit(tmp_path, precision, module, make_loader(49, 49), max_epochs=9)

    expected, _ = train("32-true")
    found, trainer = train(make_plugin(level, loss_scale=loss_scale))
    assert trainer.precision_plugin.skipped_steps == 0
    assert trainer.precision_plugin.loss_scale == loss_scale
    # As many evaluations of the closure as in FP32.
    assert len(found.losses) == len(expected.losses) > 2 * 9
    # What each step starts from; the trials in between lie far out.
    starts = [torch.tensor(module.losses[::4]) for module in (found, expected)]
    torch.testing.assert_close(*starts, **HALF_TRAINING)
    assert starts[0][-1] < 0.5 * starts[0][0]

"""Estimate the gradient noise scale, for any training loop.

McCandlish et al., "An Empirical Model of Large-Batch Training", 2018: the noise scale
``tr(S) / |G|^2`` compares the covariance S of the gradients of single samples with the true
gradient G. Batches much smaller than it lose little by being small, much larger ones gain little by
being large. A step whose gradient is the mean of several parts (micro-batches, ranks) shows both:
the parts' squared norms are those of small batches, that of the mean belongs to the whole one.
Unlike the paper's, the estimator here takes parts of unequal sizes and weights, and comes with a
standard error.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from lightning_mp.callbacks.argument_checks import require_count

__all__ = ["GradientNoiseScale", "NoiseScale", "estimate_from_parts"]


class NoiseScale(NamedTuple):
    """Hold an estimate, as float scalars on the device.

    Attributes:
        scale: Noise scale in samples; ``inf`` where the true gradient cannot be told from 0.
        standard_error: Standard error of ``scale`` in samples; NaN before the second step.
        trace: Trace of the covariance of the gradients of single samples.
        gradient_square: Squared L2 norm of the true gradient.
    """

    scale: Tensor
    standard_error: Tensor
    trace: Tensor
    gradient_square: Tensor


def estimate_from_parts(
    small: Tensor, big: Tensor, inverse_sizes: Tensor, inverse_total: Tensor
) -> tuple[Tensor, Tensor]:
    """Estimate trace and squared gradient from one step, without bias.

    With weights ``w_i`` that sum to 1 and parts of ``b_i`` samples: ``E small = |G|^2 + tr(S) *
    sum(w_i / b_i)`` and ``E big = |G|^2 + tr(S) * sum(w_i^2 / b_i)``.

    Args:
        small: Scalar, ``sum(w_i * |g_i|^2)`` of the parts' mean gradients.
        big: Scalar, ``|sum(w_i * g_i)|^2``.
        inverse_sizes: Scalar, ``sum(w_i / b_i)``.
        inverse_total: Scalar, ``sum(w_i^2 / b_i)``.

    Returns:
        Trace and squared gradient; not finite if there is only one part. Either may be negative.

    Example:
        >>> numbers = (torch.tensor(value) for value in (3.0, 2.0, 0.5, 0.25))
        >>> estimate_from_parts(*numbers)
        (tensor(4.), tensor(1.))
    """
    trace = (small - big) / (inverse_sizes - inverse_total)
    return trace, small - trace * inverse_sizes


class GradientNoiseScale:
    """Follow the noise scale of a model through its training.

    Hooks of the parameters see each backward's gradient before it is added to earlier ones and
    before it is averaged over processes. Trace and squared gradient are averaged over steps before
    they are divided: a mean of ratios would be biased. Nothing is read from the device; a step
    costs one all-reduce of four numbers where there are several processes.

    Args:
        parameters: Parameters of the model; those that need no gradient are left out.
        average_steps: Number of steps that the average remembers, at least 1.

    Attributes:
        is_measuring: Whether the hooks look at gradients; switch it between steps only.

    Raises:
        ValueError: ``average_steps`` is below 1.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> noise = GradientNoiseScale([weight])
        >>> for sample in torch.tensor([[1.0, 0.0], [0.0, 1.0]]):
        ...     (weight @ sample / 2).backward()
        ...     noise.add_part(num_samples=1, weight=0.5)
        >>> noise.add_step(weight.grad.norm())
        >>> round(float(noise.estimate().trace), 6)
        1.0
        >>> noise.remove()
    """

    def __init__(self, parameters: Iterable[Tensor], average_steps: int = 100) -> None:
        require_count("average_steps", average_steps)
        self.is_measuring = True
        self._decay = 1 - 1 / average_steps
        self._norms: list[Tensor] = []
        # Of this process: sums of w * |g|^2, w, w / b and w^2 / b, where w need not sum to 1.
        self._weighted_square: Tensor | None = None
        self._sums = [0.0, 0.0, 0.0]
        # Weights, squared weights; weighted T, G, T^2, T * G, G^2 of trace and squared gradient.
        self._moments = torch.zeros(7, dtype=torch.float64)
        self._handles = [
            item.register_hook(self._see)
            for item in dict.fromkeys(parameters)
            if item.requires_grad
        ]

    @torch.no_grad()
    def add_part(
        self, *, num_samples: int, weight: float, loss_scale: Tensor | float = 1.0
    ) -> None:
        """Take the backward that has just run; its loss was a mean over samples times ``weight``.

        Args:
            num_samples: Number of samples in it.
            weight: What its mean gradient was multiplied by, as 1 / 4 for one of four equal
                micro-batches. Averaging over processes does not count.
            loss_scale: Loss scale of mixed precision; float32 scalar on the device, or a number.
        """
        norms, self._norms = self._norms, []
        if not norms:
            return
        device = norms[0].device
        joined = torch.stack([norm.to(device, non_blocking=True) for norm in norms])
        if isinstance(loss_scale, Tensor):
            loss_scale = loss_scale.to(device, non_blocking=True)
        square = torch.linalg.vector_norm(joined / (loss_scale * weight)).double().square() * weight
        total = self._weighted_square
        self._weighted_square = square if total is None else total + square
        for index, term in enumerate((weight, weight / num_samples, weight**2 / num_samples)):
            self._sums[index] += term

    @torch.no_grad()
    def add_step(self, norm: Tensor, *, num_ranks: int = 1) -> None:
        """Take the gradient of the whole step, and average.

        Args:
            norm: L2 norm of the final gradient: unscaled, averaged over processes, not clipped.
            num_ranks: Number of processes that average gradients; each must call this.
        """
        weighted_square, sums = self._weighted_square, self._sums
        self.discard()
        if weighted_square is None and num_ranks == 1:
            return
        device = norm.device
        parts = torch.tensor([0.0, *sums], dtype=torch.float64, device=device)
        if weighted_square is not None:
            parts[0] = weighted_square.to(device)
        if num_ranks > 1:
            dist.all_reduce(parts)
        square, weight, inverse_sizes, inverse_total = parts.unbind()
        trace, gradient_square = estimate_from_parts(
            square / weight,
            (norm.double() * num_ranks / weight).square(),
            inverse_sizes / weight,
            inverse_total / weight.square(),
        )
        self._average(trace, gradient_square)

    def discard(self) -> None:
        """Forget the parts of a step that will not come."""
        self._weighted_square, self._sums, self._norms = None, [0.0, 0.0, 0.0], []

    def estimate(self) -> NoiseScale:
        """Return the present estimate; NaN before the first step."""
        weight, squared_weights, *sums = self._moments.unbind()
        trace, gradient, traces, products, gradients = (item / weight for item in sums)
        scale = torch.where(gradient > 0, (trace / gradient).clamp(min=0), torch.inf)
        # Delta method: the error of a ratio of means is that of the mean of T - ratio * G, whose
        # mean is 0 by the choice of the ratio.
        ratio = trace / gradient
        variance = traces - 2 * ratio * products + ratio.square() * gradients
        num_steps = weight.square() / squared_weights
        error = (variance.clamp(min=0) / (num_steps - 1)).sqrt() / gradient.abs()
        nan = torch.full_like(error, torch.nan)
        return NoiseScale(
            scale=torch.where(weight > 0, scale, nan),
            standard_error=torch.where(num_steps > 1.5, error, nan),
            trace=trace,
            gradient_square=gradient,
        )

    def remove(self) -> None:
        """Take the hooks out."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the averages as plain numbers."""
        return {"moments": self._moments.tolist()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from saved averages.

        Args:
            state_dict: What :meth:`state_dict` returned.
        """
        self._moments = torch.tensor(state_dict["moments"], dtype=torch.float64)

    def _see(self, gradient: Tensor) -> None:
        if self.is_measuring:
            values = gradient.detach()
            if values.is_sparse:
                values = values.coalesce().values()
            self._norms.append(torch.linalg.vector_norm(values, dtype=torch.float32))

    def _average(self, trace: Tensor, square: Tensor) -> None:
        one = torch.ones_like(trace)
        terms = [one, one, trace, square, trace.square(), trace * square, square.square()]
        rates = [self._decay] * 7
        rates[1] = self._decay**2
        before = self._moments.to(trace.device)
        after = before * torch.tensor(rates, dtype=before.dtype, device=before.device)
        after = after + torch.stack(terms)
        # A step that overflowed, or had one part only, tells nothing.
        self._moments = torch.where(after.isfinite().all(), after, before)

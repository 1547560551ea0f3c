"""The norm of all gradients: one pass after backward, or gradient by gradient as they come."""

import random
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchkit.models import Transformer, make_mlp
from lightning_mp.kernels.gradient_stats import gradient_stats_

__all__ = ["FREE_HOOKS", "GRADIENT_DTYPES", "HOOKS", "MODELS", "PASS_1", "measure_norm_taps"]

MODELS = ("mlp", "width 256", "width 512", "width 768")
GRADIENT_DTYPES = ("bfloat16", "float32")

PASS_1 = "pass 1"
"""One call over all gradients after backward: what a step does."""
HOOKS = "hooks"
"""A call for each large gradient when it is there, the rest after backward."""
FREE_HOOKS = "free hooks"
"""The same less what a hook costs without elements: only reading and adding up the gradient."""

_NUM_WARMUP_ROUNDS = 2
# As many elements as the kernel sums at a time.
_MIN_NUMEL = 65_536
_VOCABULARY_SIZE, _NUM_TOKENS = 8192, 128
_MLP_WIDTHS, _MLP_BATCH_SIZE = (1024, 4096, 4096, 2048, 10), 8


def measure_norm_taps(
    *,
    model: str,
    gradient_dtype: str,
    num_rounds: int,
    num_threads: int,
    is_smoke: bool = False,
) -> dict[str, Any]:
    """Time backward and the norm in each form, each round in another order.

    Args:
        model: One of ``MODELS``; its weights are bfloat16.
        gradient_dtype: ``"bfloat16"`` for gradients of one backward, ``"float32"`` for those that
            were accumulated in FP32.
        num_rounds: Number of rounds, after two for warming up.
        num_threads: Number of threads of torch.
        is_smoke: Whether the model is tiny, with hooks on nearly all parameters.

    Returns:
        ``numel`` of the model, ``num_hooks``, and for each form and round processor seconds:
        ``norm`` and ``backward``, in which time in hooks is not counted.
    """
    torch.set_num_threads(num_threads)
    torch.manual_seed(0)
    bench = _Bench(model, getattr(torch, gradient_dtype), is_smoke=is_smoke)
    forms = (PASS_1, HOOKS, FREE_HOOKS)
    times: dict[str, dict[str, list[float]]] = {
        form: {"backward": [], "norm": []} for form in forms
    }
    for round_index in range(_NUM_WARMUP_ROUNDS + num_rounds):
        for form in random.Random(round_index).sample(forms, len(forms)):
            backward, norm = bench.run(form)
            if round_index >= _NUM_WARMUP_ROUNDS:
                times[form]["backward"].append(backward)
                times[form]["norm"].append(norm)
    for form in forms:
        norm = statistics.median(times[form]["norm"])
        print(f"{model}, {gradient_dtype}: {form:<10} {norm * 1e3:9.3f} ms", file=sys.stderr)
    return {
        "numel": sum(item.numel() for item in bench.parameters),
        "num_hooks": len(bench.tapped),
        "times": times,
    }


class _Bench:
    """Run one backward and take the norm of its gradients."""

    def __init__(self, model: str, gradient_dtype: torch.dtype, *, is_smoke: bool) -> None:
        module, self._inputs, self._targets = _make(model, is_smoke)
        self._module = module.to(torch.bfloat16)
        self._gradient_dtype = gradient_dtype
        self.parameters = list(module.parameters())
        min_numel = 64 if is_smoke else _MIN_NUMEL
        self.tapped = [item for item in self.parameters if item.numel() >= min_numel]
        self._rest = [item for item in self.parameters if item.numel() < min_numel]

    def run(self, form: str) -> tuple[float, float]:
        """Return the processor seconds of backward without its hooks, and of the norm."""
        self._prepare_gradients()
        logits = self._module(self._inputs).float()
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), self._targets)
        tap = _Tap(is_free=form == FREE_HOOKS)
        tapped = [] if form == PASS_1 else self.tapped
        handles = [item.register_post_accumulate_grad_hook(tap) for item in tapped]
        start = time.process_time()
        loss.backward()
        backward = time.process_time() - start - tap.seconds_of_hooks
        for handle in handles:
            handle.remove()
        tap.take(self._rest if tapped else self.parameters)
        return backward, tap.seconds_of_norm

    def _prepare_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
            if self._gradient_dtype != parameter.dtype:
                # So that autograd adds to a gradient of another dtype, as under the engine.
                parameter.grad_dtype = None
                parameter.grad = torch.zeros_like(parameter, dtype=self._gradient_dtype)


class _Tap:
    """Take norms, and add up the time of it."""

    def __init__(self, *, is_free: bool) -> None:
        self.seconds_of_hooks = self.seconds_of_norm = 0.0
        self._is_free = is_free
        self._outputs = dict(zip(("norm", "factor", "found_inf"), torch.zeros(3, 1), strict=True))
        self._one = [torch.ones(1, dtype=torch.bfloat16)]

    def __call__(self, parameter: Tensor) -> None:
        """Be the hook of a parameter."""
        start = time.process_time()
        if self._is_free:
            # Backward has driven code and tables of the call out of the caches: the first call
            # brings them back, the second says what a call costs with them there.
            self._time(self._one)
            self.seconds_of_norm -= self._time(self._one)
        self.take([parameter])
        self.seconds_of_hooks += time.process_time() - start

    def take(self, parameters: Sequence[Tensor]) -> None:
        """Take the norm of gradients in one call."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        self.seconds_of_norm += self._time(gradients)

    def _time(self, gradients: Sequence[Tensor]) -> float:
        start = time.process_time()
        gradient_stats_(gradients, **self._outputs)
        return time.process_time() - start


def _make(model: str, is_smoke: bool) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a model with inputs and targets, few of them so that backward is short."""
    if model == "mlp":
        widths = (33, 17, 10) if is_smoke else _MLP_WIDTHS
        inputs = torch.randn(_MLP_BATCH_SIZE, widths[0], dtype=torch.bfloat16)
        return make_mlp(widths), inputs, torch.randint(0, widths[-1], (_MLP_BATCH_SIZE,))
    width, size, time_steps = int(model.removeprefix("width ")), _VOCABULARY_SIZE, _NUM_TOKENS
    if is_smoke:
        width, size, time_steps = 16, 53, 7
    tokens = torch.randint(0, size, (1, time_steps + 1))
    module = Transformer(size, width, num_positions=time_steps)
    return module, tokens[:, :-1], tokens[0, 1:]

"""What the fused optimizers share: a step that hands whole groups to the kernels."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_mp.kernels.adam_group import STATE_DTYPE
from lightning_mp.kernels.group_steps import GROUP_STEP
from lightning_mp.kernels.step_rows import StepInputs, StepRow, state_of

__all__ = ["FusedOptimizer"]

_HALF_DTYPES = (torch.float16, torch.bfloat16)
_DTYPES = (torch.float32, *_HALF_DTYPES)
# FP32 stand-ins of half weights are alive for this many elements at a time.
_CHUNK_NUMEL = 1 << 22
_UNSUPPORTED = ("amsgrad", "differentiable")


class FusedOptimizer(Optimizer):
    """Step each parameter group in one pass over memory.

    A subclass also derives from the optimizer of torch whose groups and state it has, and names
    the function that steps a group as the static method ``fused_group_step``.

    Where ``grad_scale`` and ``found_inf`` are set, as ``torch.amp.GradScaler`` does, gradients are
    divided by the one and the step changes nothing where the other is not 0. Gradients themselves
    are not written.
    """

    # How GradScaler knows; torch sets it on the object, and a copied object loses that.
    _step_supports_amp_scaling = True

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        for index, parameter in enumerate(added["params"]):
            if parameter.dtype not in _DTYPES:
                self.param_groups.pop()
                raise TypeError(
                    f"params[{index}] of {type(self).__name__} is {parameter.dtype}; allowed are "
                    "torch.float32, torch.bfloat16 and torch.float16; use the optimizer of "
                    "torch.optim for it"
                )

    @override
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient; a frozen one has none.

        Half parameters are updated in FP32 and rounded; their state is as that of others.

        Args:
            closure: Computes the loss again and returns it.

        Returns:
            What the closure returned, else ``None``.

        Raises:
            RuntimeError: A gradient is sparse; nothing was changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        grad_scale: Tensor | None = getattr(self, "grad_scale", None)
        inputs = StepInputs(
            factor=None if grad_scale is None else grad_scale.float().reciprocal(),
            found_inf=getattr(self, "found_inf", None),
        )
        groups = [(group, self._with_gradient(group)) for group in self.param_groups]
        step_group = getattr(self, GROUP_STEP)
        for group, parameters in groups:
            full = [item for item in parameters if item.dtype not in _HALF_DTYPES]
            step_group(group, [self._row(group, item, item, None) for item in full], inputs)
            halves = [item for item in parameters if item.dtype in _HALF_DTYPES]
            for chunk in _in_chunks(halves):
                rows = [self._row(group, item, item.float(), item) for item in chunk]
                step_group(group, rows, inputs)
        return loss

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this class or of its counterpart in ``torch.optim``.

        Args:
            state_dict: What ``state_dict()`` returned.

        Raises:
            ValueError: It is that of a variant which is not supported, or of other groups; nothing
                is changed then.
        """
        for group in state_dict["param_groups"]:
            _refuse_variants(type(self).__name__, group)
        super().load_state_dict(state_dict)
        self._keep_state_dtype(state_dict)

    @override
    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            # They choose among torch's own steps; a state dict of this class leaves that open.
            group.update({"fused": None, "foreach": None})

    def _with_gradient(self, group: dict[str, Any]) -> list[Tensor]:
        parameters = [item for item in group["params"] if item.grad is not None]
        for parameter in parameters:
            if parameter.grad.layout != torch.strided:
                raise RuntimeError(
                    f"{type(self).__name__}: the gradient of a parameter of shape "
                    f"{tuple(parameter.shape)} is {parameter.grad.layout}; dense gradients are "
                    "allowed; use sparse=False in the embedding, or torch.optim.SparseAdam or SGD"
                )
        return parameters

    def _row(
        self, group: dict[str, Any], parameter: Tensor, weight: Tensor, copy: Tensor | None
    ) -> StepRow:
        assert parameter.grad is not None
        return StepRow(parameter.grad, weight, copy, state_of(self, group, parameter))

    def _keep_state_dtype(self, state_dict: Mapping[str, Any]) -> None:
        """Take back the state in its own dtype: torch has brought it to that of its parameter."""
        for saved, group in zip(state_dict["param_groups"], self.param_groups, strict=True):
            dtype = group.get(STATE_DTYPE, torch.float32)
            for key, parameter in zip(saved["params"], group["params"], strict=True):
                for name, value in self.state.get(parameter, {}).items():
                    is_moment = isinstance(value, Tensor) and name != "step"
                    if is_moment and value.dtype in _DTYPES and value.dtype != dtype:
                        given = state_dict["state"][key][name]
                        self.state[parameter][name] = given.to(value.device, dtype, copy=True)


def _refuse_variants(name: str, group: Mapping[str, Any]) -> None:
    for option in _UNSUPPORTED:
        if group.get(option):
            raise ValueError(
                f"{option} = {group[option]!r} for {name}; only False is allowed; use the "
                "optimizer of torch.optim for it"
            )


def _in_chunks(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    chunk: list[Tensor] = []
    for parameter in parameters:
        if chunk and sum(item.numel() for item in chunk) + parameter.numel() > _CHUNK_NUMEL:
            yield chunk
            chunk = []
        chunk.append(parameter)
    if chunk:
        yield chunk

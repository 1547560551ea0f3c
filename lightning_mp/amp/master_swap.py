"""Masters stand in an optimizer only while it works ("swap on step").

Between steps ``param_groups`` hold the model's own parameters, so zero_grad, toggling, freezing and
everything else that walks an optimizer finds what it looks for. While gradients are clipped, while
the optimizer steps and while it is saved or loaded, the FP32 masters are in. The optimizer's state
goes with them: it is keyed by whatever stands in the groups, where readers look for it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from lightning_mp.amp.master_weights import MasterWeights
from lightning_mp.kernels.group_steps import CHOOSES_STATE_DTYPE

__all__ = ["MasterSwap"]


class MasterSwap:
    """Swap the masters of one optimizer in and out.

    Args:
        optimizer: A torch optimizer over model parameters.
        masters: Masters of the model.
    """

    def __init__(self, optimizer: Optimizer, masters: MasterWeights) -> None:
        self._optimizer = optimizer
        self._masters = masters
        self._depth = 0
        self._is_loading = False
        self._opened: list[Tensor] = []
        self._handles: list[RemovableHandle] = []
        self._handles = [
            optimizer.register_state_dict_pre_hook(self._before_saving),
            optimizer.register_state_dict_post_hook(self._after_saving),
            optimizer.register_load_state_dict_pre_hook(self._before_loading),
            optimizer.register_load_state_dict_post_hook(self._after_loading),
        ]

    @property
    def parameters(self) -> list[Tensor]:
        """The optimizer's model parameters, in order, whether or not the masters are in."""
        self._end_load()
        owner_of = self._masters.owner_of
        return [
            owner_of(item) for group in self._optimizer.param_groups for item in group["params"]
        ]

    @property
    def is_in(self) -> bool:
        """Whether the masters are in the groups now."""
        return self._depth > 0

    @property
    def _has_chosen_dtype(self) -> bool:
        # Half state that an optimizer was told to keep, not one that followed its weights.
        return getattr(self._optimizer, CHOOSES_STATE_DTYPE, False)

    @contextmanager
    def masters_in(self) -> Iterator[None]:
        """Hold the masters in the optimizer's parameter groups; may be nested."""
        self._enter()
        if self._depth == 1:
            self._opened = self.parameters
            self._masters.open(self._opened)
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def masters_out(self) -> Iterator[None]:
        """Hold the model's parameters in the groups for a while inside :meth:`masters_in`."""
        depth, self._depth = self._depth, 0
        self._replace(self._masters.owner_of)
        try:
            yield
        finally:
            self._depth = depth
            self._replace(self._masters.of)

    def hold(self) -> None:
        """Put the masters in until :meth:`release`; also those of groups added meanwhile."""
        self._end_load()
        self._depth = max(self._depth, 1)
        self._raise_half_state()
        self._replace(self._masters.of)

    def release(self) -> None:
        """End :meth:`hold`: the model's parameters are in the groups again."""
        self._end_load()
        self._depth = 0
        self._replace(self._masters.owner_of)

    def detach(self) -> None:
        """Remove the hooks and key the state by the model's parameters again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        state = self._optimizer.state
        for key, entry in state.items():
            if isinstance(key, Tensor) and not self._has_chosen_dtype:
                # Half state (O3) goes with the half weights that it belongs to.
                state[key] = {name: _raised(value, key) for name, value in entry.items()}

    def _enter(self) -> None:
        self._end_load()
        self._depth += 1
        if self._depth == 1:
            self._raise_half_state()
            self._replace(self._masters.of)

    def _leave(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._masters.close(self._opened)
            self._opened = []
            self._replace(self._masters.owner_of)

    def _replace(self, function: Callable[[Tensor], Tensor]) -> None:
        state = self._optimizer.state
        for group in self._optimizer.param_groups:
            for item in group["params"]:
                other = function(item)
                if other is not item and item in state:
                    state[other] = state.pop(item)
            # In place: optimizers such as LBFGS keep a reference to this very list.
            group["params"][:] = [function(item) for item in group["params"]]

    def _raise_half_state(self) -> None:
        # Some optimizers (Adagrad) make their state, in half, as soon as they get a parameter.
        if self._has_chosen_dtype:
            return
        state = self._optimizer.state
        for parameter in self.parameters:
            if self._masters.of(parameter) is not parameter and parameter in state:
                entry = state[parameter]
                state[parameter] = {key: _raised(item, parameter) for key, item in entry.items()}

    def _before_saving(self, optimizer: Optimizer) -> None:
        self._enter()

    def _after_saving(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        self._leave()

    def _before_loading(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        # torch refuses groups of another shape after this hook and then never calls the second
        # one: the masters must not go in for a state dict that will be refused.
        saved = [len(group["params"]) for group in state_dict["param_groups"]]
        if saved == [len(group["params"]) for group in optimizer.param_groups]:
            self._enter()
            self._is_loading = True

    def _after_loading(self, optimizer: Optimizer) -> None:
        self._end_load()

    def _end_load(self) -> None:
        # Called late too: no hook tells of a load that another hook or a damaged state has stopped.
        if self._is_loading:
            self._is_loading = False
            self._leave()


def _raised(value: Any, parameter: Tensor) -> Any:
    if isinstance(value, Tensor) and value.dtype == parameter.dtype:
        return value.to(torch.float32)
    return value

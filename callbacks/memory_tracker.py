"""Follow the memory of a training step by what it is for, on any device, without running out of it.

Every storage that an operation makes is followed until it is freed. What kernels and libraries
allocate inside, and what communication allocated before, is not seen.
"""

import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightning_mp.callbacks.memory_replay import MemoryReplay
from lightning_mp.callbacks.memory_report import Category, MemoryReport

__all__ = ["MemoryTracker"]


class _Allocation:
    """One storage, alive or freed."""

    __slots__ = ("category", "module", "num_bytes", "num_elements", "reference")

    def __init__(self, tensor: Tensor, category: Category, module: str) -> None:
        self.num_bytes = tensor.untyped_storage().nbytes()
        self.num_elements = self.num_bytes // tensor.element_size()
        self.category: Category = category
        self.module = module
        self.reference: Any = None


class MemoryTracker(TorchDispatchMode):
    """Measure one training step, or several.

    Args:
        model: The model; its parameters and buffers count as parameters.
        optimizer_tensors: What optimizers hold: states, masters.

    Example:
        >>> model = nn.Linear(100, 100, bias=False)
        >>> tracker = MemoryTracker(model)
        >>> batch = torch.ones(10, 100)
        >>> tracker.add([batch], "activations")
        >>> with tracker:
        ...     loss = model(batch).square().mean()
        ...     tracker.begin_backward()
        ...     loss.backward()
        ...     tracker.end_backward()
        >>> tracker.report(batch_size=10).step_peak.by_category["parameters"]
        40000
    """

    def __init__(self, model: nn.Module, optimizer_tensors: Iterable[Any] = ()) -> None:
        super().__init__()
        self._alive: dict[int, _Allocation] = {}
        # What came (True) and went (False), and where a phase begins (whether it is a step).
        self._events: list[tuple[bool, _Allocation] | bool] = []
        self._modules: list[str] = []
        self._is_in_step = False
        self._parameters = list(dict.fromkeys(model.parameters()))
        self._handles: list[Any] = []
        self.add([*model.parameters(), *model.buffers()], "parameters")
        self.add(optimizer_tensors, "optimizer")
        self._add_gradients()
        self._hook(model)

    def add(self, tensors: Iterable[Any], category: Category) -> None:
        """Name what some tensors are for, and count them if they are new.

        Args:
            tensors: Tensors, or nests of them.
            category: What they are for.
        """
        for item in tree_leaves(list(tensors)):
            if isinstance(item, Tensor) and item.device.type != "meta":
                known = self._alive.get(item.untyped_storage()._cdata)
                if known is None:
                    self._note(item, category)
                elif known.category not in ("parameters", "optimizer"):
                    known.category = category

    def begin_backward(self) -> None:
        """Note that a forward is over: what it left are activations."""
        self._enter_phase(is_in_step=False)
        for allocation in self._alive.values():
            if allocation.category == "temporary":
                allocation.category = "activations"

    def end_backward(self) -> None:
        """Note that a backward is over."""
        self._add_gradients()

    def begin_step(self) -> None:
        """Note that an optimizer step begins."""
        self._add_gradients()
        self._enter_phase(is_in_step=True)

    def end_step(self, optimizer_tensors: Iterable[Any]) -> None:
        """Note that an optimizer step is over.

        Args:
            optimizer_tensors: What the optimizers hold now.
        """
        self.add(optimizer_tensors, "optimizer")

    def report(self, *, batch_size: int) -> MemoryReport:
        """Return what was measured.

        Args:
            batch_size: Samples in the batch of this device.
        """
        sizes = {item.numel() for item in self._parameters}
        replay = MemoryReplay()
        by_module: Counter[str] = Counter()
        for event in self._events:
            if isinstance(event, bool):
                replay.enter_phase(is_in_step=event)
                continue
            comes, item = event
            # A temporary as large as a parameter is its gradient or its copy, most likely.
            is_copy = item.category == "temporary" and item.num_elements in sizes
            is_fixed = is_copy or item.category in ("parameters", "gradients", "optimizer")
            replay.move(item.num_bytes if comes else -item.num_bytes, item.category, is_fixed)
            if comes and item.category == "activations":
                by_module[item.module] += item.num_bytes
        return replay.report(batch_size, dict(by_module.most_common()))

    def remove(self) -> None:
        """Take the hooks out of the model and forget everything."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._alive.clear()
        self._events.clear()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for item in tree_leaves(result):
            if not isinstance(item, Tensor) or item.layout != torch.strided:
                continue
            if item.device.type != "meta" and item.untyped_storage()._cdata not in self._alive:
                self._note(item, "temporary")
        return result

    def _note(self, tensor: Tensor, category: Category) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        allocation = _Allocation(tensor, category, self._modules[-1] if self._modules else "")
        owner = weakref.ref(self)

        def forget(_: Any) -> None:
            tracker = owner()
            if tracker is not None:
                tracker._free(key, allocation)

        allocation.reference = weakref.ref(storage, forget)
        self._alive[key] = allocation
        self._events.append((True, allocation))

    def _free(self, key: int, allocation: _Allocation) -> None:
        if self._alive.get(key) is allocation:
            del self._alive[key]
            self._events.append((False, allocation))

    def _enter_phase(self, *, is_in_step: bool) -> None:
        if self._is_in_step != is_in_step:
            self._is_in_step = is_in_step
            self._events.append(is_in_step)

    def _add_gradients(self) -> None:
        gradients = [item.grad for item in self._parameters if item.grad is not None]
        self.add([item for item in gradients if not item.is_sparse], "gradients")

    def _hook(self, model: nn.Module) -> None:
        for name, module in model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            enter = self._enter(name or type(model).__name__)
            self._handles += [
                module.register_forward_pre_hook(enter, prepend=True),
                module.register_forward_hook(self._leave, always_call=True),
            ]
        for parameter in self._parameters:
            if parameter.requires_grad:
                self._handles.append(
                    parameter.register_post_accumulate_grad_hook(self._see_gradient)
                )

    def _enter(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            if self._is_in_step:
                # In manual optimisation the next forward follows without a sign of its own.
                self._enter_phase(is_in_step=False)
            self._modules.append(name)

        return hook

    def _leave(self, *_: Any) -> None:
        if self._modules:
            self._modules.pop()

    def _see_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None and not parameter.grad.is_sparse:
            self.add([parameter.grad], "gradients")

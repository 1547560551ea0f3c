"""The Trainer of Hugging Face Transformers at an opt level."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer

from lightning_mp import amp

__all__ = ["AmpTrainer"]

_STATE_FILE = "amp.pt"


class AmpTrainer(Trainer):
    """Train with ``amp.initialize`` and ``amp.scale_loss``, not with Accelerate's mixed precision.

    Leave ``fp16`` and ``bf16`` of the TrainingArguments off. Clipping sees FP32 gradients, a
    checkpoint holds FP32 weights and the state of the loss scale, and accumulation and DDP work as
    before. A learning-rate schedule does not hold while steps are skipped, as the Trainer only
    knows of those that Accelerate skips.

    Args:
        *args: As for ``Trainer``.
        amp_options: Arguments of ``amp.initialize``, such as ``{"opt_level": "O2"}``.
        **kwargs: As for ``Trainer``.
    """

    def __init__(self, *args: Any, amp_options: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.args.fp16 or self.args.bf16:
            raise ValueError(
                f"fp16 = {self.args.fp16} and bf16 = {self.args.bf16} with AmpTrainer; both must "
                "be False; say it all in amp_options"
            )
        self.amp_options = amp_options

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Make the optimizer and initialise it and the model.

        The Trainer calls this after it has loaded a checkpoint into the FP32 model, and before it
        wraps the model for DDP.

        Args:
            model: The model, if it is not the Trainer's own.

        Returns:
            The optimizer, over FP32 masters.
        """
        if self.optimizer is None:
            optimizer = super().create_optimizer(model)
            model = self.model if model is None else model
            _, self.optimizer = amp.initialize(model, optimizer, **self.amp_options)
        return self.optimizer

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Run forward and backward on one micro-batch.

        Args:
            model: The model, perhaps wrapped for DDP.
            inputs: A batch.
            num_items_in_batch: Number of labels in all micro-batches of the step.

        Returns:
            The loss, detached.
        """
        model.train()
        inputs = self._prepare_inputs(inputs)
        loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        if not self.model_accepts_loss_kwargs or num_items_in_batch is None:
            loss = loss / self.current_gradient_accumulation_steps
        with amp.scale_loss(loss, self._amp_optimizer) as scaled_loss:
            scaled_loss.backward()
        return loss.detach()

    @property
    def _amp_optimizer(self) -> torch.optim.Optimizer:
        # Accelerate wraps the optimizer.
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        parameters = list(amp.master_params(self._amp_optimizer))
        return torch.nn.utils.clip_grad_norm_(parameters, self.args.max_grad_norm)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            torch.save(amp.state_dict(), Path(output_dir, _STATE_FILE))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and Path(checkpoint, _STATE_FILE).is_file():
            amp.load_state_dict(torch.load(Path(checkpoint, _STATE_FILE), weights_only=True))

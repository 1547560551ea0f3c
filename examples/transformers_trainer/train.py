"""Train a small GPT-2 on the text of Python's language reference, with the Trainer and our amp.

Nothing is downloaded: the text is part of every Python, a token is a byte, and the model is made
from a config. See README.md.
"""

import argparse
from pathlib import Path
from pydoc_data.topics import topics

import torch
from amp_trainer import AmpTrainer
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments, set_seed

from lightning_mp import amp
from lightning_mp.amp import parse_precision

CONTEXT = 64


def make_examples(num_examples: int) -> list[dict[str, Tensor]]:
    """Cut the text into examples of one context each.

    Args:
        num_examples: Number of examples, from the start of the text.

    Returns:
        Examples with ``input_ids`` and ``labels``, int64 ``[CONTEXT]``.
    """
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    rows = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    rows = rows[: num_examples * CONTEXT].view(-1, CONTEXT)
    return [{"input_ids": row, "labels": row} for row in rows]


def make_model() -> GPT2LMHeadModel:
    """Make a GPT-2 of two layers with random weights."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=256,
            n_positions=CONTEXT,
            n_embd=64,
            n_layer=2,
            n_head=2,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--precision", default="O2-bf16", help="a level, such as O2 or O2-bf16")
    parser.add_argument("--max-steps", type=int, default=200)
    parser.add_argument("--save-steps", type=int, default=50)
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per step")
    parser.add_argument("--output", default="runs/transformers_trainer")
    parser.add_argument("--resume", help="a checkpoint folder to go on from")
    return parser.parse_args()


def main() -> None:
    """Train, and say how the loss moved."""
    arguments = parse_arguments()
    opt_level, half_dtype = parse_precision(arguments.precision)
    amp.set_half_dtype(half_dtype)
    set_seed(1)
    trainer = AmpTrainer(
        model=make_model(),
        args=TrainingArguments(
            output_dir=arguments.output,
            max_steps=arguments.max_steps,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=arguments.accumulate,
            learning_rate=3e-3,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=5,
            logging_steps=5,
            save_steps=arguments.save_steps,
            dataloader_pin_memory=torch.accelerator.is_available(),
            report_to="none",
        ),
        train_dataset=make_examples(4096),
        amp_options={"opt_level": opt_level},
    )
    trainer.train(resume_from_checkpoint=arguments.resume)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, saved in {Path(arguments.output).resolve()}")


if __name__ == "__main__":
    main()

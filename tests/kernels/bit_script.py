"""Print a hash of what all operations make of fixed inputs; started once per way to compute it."""

import hashlib
import itertools
from collections.abc import Sequence

import torch
from support.kernels import (
    FLOATING,
    HALF,
    adam_arguments,
    clone_lists,
    make_lists,
    random_tensors,
    sgd_arguments,
)
from torch import Tensor

OPS = torch.ops.lightning_mp


def main() -> None:
    """Run the operations and print the hash."""
    digest = hashlib.sha256()

    def add(*lists: Sequence[Tensor]) -> None:
        for tensors in lists:
            for tensor in tensors:
                digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())

    kinds = [(copy, False) for copy in (None, *HALF)] + [(HALF[0], True)]
    for gradient, (copy, is_split) in itertools.product(FLOATING, kinds):
        lists = make_lists(gradient, copy, is_split=is_split)
        steps = [torch.tensor(float(index)) for index in range(len(lists[0]))]
        norm, factor, flag = torch.zeros(3, 1).unbind()
        OPS.gradient_stats_(lists[0], torch.tensor(0.37), 1.0, norm, factor, flag)
        add([norm, factor, flag])
        for adopt, decoupled in itertools.product([False, True], repeat=2):
            mine = clone_lists(lists)
            settings = adam_arguments(factor=factor, adopt=adopt, decoupled=decoupled)
            OPS.adam_step_(*mine, [step.clone() for step in steps], **settings)
            add(*mine)
            rounded = clone_lists(lists)
            rounded[3:] = [[state.bfloat16() for state in states] for states in lists[3:]]
            OPS.adam_step_(*rounded, [step.clone() for step in steps], **settings | {"seed": 7})
            add(*rounded)
        OPS.sgd_step_(*lists[:4], **sgd_arguments(factor=factor, clip_value=0.01))
        add(*lists)
    for source, target in itertools.product(FLOATING, FLOATING):
        inputs = random_tensors(source)
        outputs = [torch.empty(item.shape, dtype=target) for item in inputs]
        OPS.scale_copy_(inputs, outputs, torch.tensor(0.37), torch.zeros(1))
        add(outputs)
        OPS.axpby_(inputs, outputs, outputs, 0.3, 0.7, torch.zeros(1))
        add(outputs, OPS.l2_norm(inputs, True))
    for dtype, smoothing, num_classes in itertools.product(HALF, (0.0, 0.1), (7, 1031, 33801)):
        logits = (torch.randn(9, num_classes) * 5).to(dtype)
        logits[1:3, 3] = torch.tensor([float("inf"), float("-inf")])
        logits[3, 2] = float("nan")
        target = torch.randint(0, num_classes, (9,))
        target[::4] = -100
        for weight in (None, torch.rand(num_classes)):
            results = OPS.cross_entropy_forward(logits, target, weight, -100, smoothing)
            gradient = torch.linspace(-1.0, 2.0**14, 9)
            add(results)
            arguments = (logits, target, results[1], weight, -100, smoothing)
            add([OPS.cross_entropy_backward(gradient, *arguments)])
    # Redone in double precision: sums that overflow, and that underflow.
    for value in (3e38, 1e-30):
        add(OPS.l2_norm([torch.full((70001,), value) * torch.rand(70001).add(0.1)], True)[:1])
    print(digest.hexdigest())


if __name__ == "__main__":
    torch.manual_seed(0)
    main()

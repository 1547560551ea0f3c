"""Run in a process of its own by test_native_processes.py; results go to the path given last.

``stock [native]`` runs torch.autocast, without or with the kernels of native casts installed;
``cache [operator]`` compiles under native casts, without or with a policy for sinc.
"""

import sys
from contextlib import nullcontext

import torch
from support.op_samples import converted, function_of, sample_args
from torch import nn
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_leaves

from lightning_mp.amp.native_casts import NativeCasts
from lightning_mp.amp.native_installation import INSTALLATION
from lightning_mp.amp.op_lists import NAMESPACES, OP_POLICIES, Policy

HALVES = (torch.bfloat16, torch.float16)


def stock_results(has_native: bool) -> dict[str, list]:
    """What every function gives, and a transformer with its gradients, in and out of autocast."""
    if has_native:
        NativeCasts(torch.bfloat16, ("cpu",))
    results = {}
    for half in HALVES:
        for row in OP_POLICIES:
            if not hasattr(NAMESPACES[row.namespace], row.name) or row.name == "matrix_exp":
                continue
            for dtypes in ((half,), (torch.float32,), (half, torch.float32)):
                for is_on in (False, True):
                    key = f"{row.namespace}.{row.name} {dtypes} {is_on}"
                    results[key] = one_result(row, dtypes, half if is_on else None)
        results[f"transformer {half}"] = transformer_results(half)
    return results


def one_result(row, dtypes, half) -> list:
    args = converted(sample_args(row), dtypes)
    torch.manual_seed(7)
    try:
        with torch.autocast("cpu", dtype=half) if half else nullcontext():
            return tree_leaves(function_of(row)(*args))
    except (RuntimeError, NotImplementedError) as error:
        return [f"{type(error).__name__}: {error}"]


def transformer_results(half: torch.dtype) -> list:
    torch.manual_seed(7)
    layer = nn.TransformerEncoderLayer(26, 2, 39, dropout=0.0, batch_first=True)
    with torch.autocast("cpu", dtype=half):
        output = layer(torch.randn(3, 7, 26))
    output.float().pow(2).mean().backward()
    return [output.detach(), *(weight.grad for weight in layer.parameters())]


def cache_results(has_operator: bool) -> dict[str, object]:
    casts = NativeCasts(torch.bfloat16, ("cpu",))
    if has_operator:
        INSTALLATION.register("aten::sinc", Policy.FP32)
    with torch.no_grad(), casts.context():
        result = torch.compile(lambda x: torch.sinc(x @ x))(torch.rand(7, 7))
    return {
        "dtype": result.dtype,
        "hits": counters["aot_autograd"]["autograd_cache_hit"],
        "misses": counters["aot_autograd"]["autograd_cache_miss"],
    }


if __name__ == "__main__":
    what, *options, path = sys.argv[1:]
    run = {"stock": stock_results, "cache": cache_results}[what]
    torch.save(run(bool(options)), path)

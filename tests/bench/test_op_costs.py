import pytest
import torch

from benchkit.casts import make_contexts
from benchkit.op_costs import make_operations
from lightning_mp.amp.function_casts import FunctionCasts


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_peer_computes_what_o1_does(dtype):
    for operation in make_operations(dtype):
        with torch.no_grad(), FunctionCasts(dtype, implementation="python").context():
            result = operation.run()
        with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
            peer = operation.run()
        if operation.by_hand is not None:
            peer = operation.by_hand()
        assert result.dtype == peer.dtype, operation.name
        torch.testing.assert_close(result, peer)


def test_an_absent_library_is_said(monkeypatch):
    absent = (False, "the library was not built")
    monkeypatch.setattr("lightning_mp.amp.function_casts.native_status", lambda _: absent)
    monkeypatch.setattr("lightning_mp.amp.native_casts.native_status", lambda _: absent)
    with pytest.raises(RuntimeError, match=r"native casts on .* = not available"):
        make_contexts("bfloat16")

"""Operators on devices of the host: the CPU's results, bit for bit, and the CPU's aliasing."""

import threading
from collections.abc import Callable

import pytest
import torch

from lightning_mp.fl.library import fl_operators


def counts(index: int = 0) -> dict[tuple[str, str], int]:
    names, routes, calls, _ = fl_operators().counts(index)
    return {(name, route): number for name, route, number in zip(names, routes, calls, strict=True)}


UNARY = {
    "add": lambda x: x + x,
    "scalar": lambda x: 2.0 - x * 3,
    "matmul": lambda x: x @ x.mT,
    "softmax": lambda x: x.softmax(-1),
    "sum": lambda x: x.sum(0),
    "sort": lambda x: x.sort()[1],
    "cat": lambda x: torch.cat([x, x[:1]]),
    "index": lambda x: x[x > 0],
    "index of the CPU": lambda x: x[torch.tensor([1, 0])],
    "nonzero": lambda x: x.nonzero(),
    "svd": lambda x: torch.linalg.svd(x)[1],
    "conv": lambda x: torch.nn.functional.conv1d(x[None], x[None, :, :3]),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, (13,)),
    "fft": lambda x: torch.fft.fft(x).abs(),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "split": lambda x: torch.cat(x.split([3, 10], 1)[::-1], 1),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "cumsum": lambda x: x.cumsum(1),
    "topk": lambda x: x.topk(5)[0],
    "unique": lambda x: x.round().unique(),
    "to double": lambda x: x.double().mean(),
    "to bfloat16": lambda x: (x.bfloat16() * 3).float(),
    "complex": lambda x: torch.view_as_real(torch.complex(x, x).conj() * 2j),
    "foreach": lambda x: torch.stack(torch._foreach_mul([x, x], 2.0)),
    "bool": lambda x: (x > 0).any(1),
    "empty": lambda x: x[:0].sum(),
}


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("name", UNARY)
def test_results_are_those_of_the_cpu(name: str, index: int):
    torch.manual_seed(3)
    x = torch.randn(7, 13)
    expected = UNARY[name](x)
    result = UNARY[name](x.to(f"fl:{index}"))
    assert result.device == torch.device("fl", index)
    assert result.dtype == expected.dtype
    assert result.stride() == expected.stride()
    assert torch.equal(result.cpu(), expected)


def test_the_kernel_that_ran_is_counted():
    fl_operators().reset_counts()
    x = torch.ones(3, device="fl:0")
    torch.erfinv(x * 0)
    torch.erfinv(torch.zeros(3, device="fl:1"))
    assert counts(0)["aten::erfinv", "native"] == 1
    assert counts(1)["aten::erfinv", "native"] == 1
    assert counts(0)["aten::mul.Tensor", "native"] == 1
    assert ("aten::erfinv", "native") not in counts(3)
    fl_operators().reset_counts()
    assert counts(0) == {}


def test_views_are_views():
    x = torch.zeros(4, 5, device="fl:0")
    view = x[1:3, ::2]
    view.add_(1)
    assert x.sum().item() == 6
    assert view._base is x
    assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    x.view(-1)[0] = 7
    assert x[0, 0].item() == 7
    x.t().mul_(2)
    assert x.sum().item() == 26
    for part in x.unbind(1):
        part.zero_()
    assert x.sum().item() == 0


def test_in_place_returns_the_same_object():
    x = torch.ones(7, device="fl:0")
    assert x.add_(1) is x
    assert x.mul_(torch.full((7,), 3.0, device="fl:0")) is x
    assert x.clamp_(max=5) is x
    assert x.tolist() == [5] * 7


def test_in_place_on_transposed_and_on_strided_tensors():
    x = torch.arange(6.0).view(2, 3)
    expected, result = x.clone(), x.to("fl:0")
    for tensor in (expected, result):
        tensor.t().mul_(2)
        tensor[:, 1].addmv_(tensor[:, ::2], tensor[0, ::2])
    assert torch.equal(result.cpu(), expected)
    assert result.stride() == expected.stride()


def test_out_is_filled_resized_and_returned():
    x = torch.arange(5.0, device="fl:0")
    out = torch.empty(0, device="fl:0")
    assert torch.add(x, x, out=out) is out
    assert out.tolist() == [0, 2, 4, 6, 8]
    assert torch.add(x, x, out=x) is x
    values, indices = torch.empty(0, device="fl:0"), torch.empty(0, device="fl:0", dtype=torch.long)
    torch.sort(-x, out=(values, indices))
    assert indices.tolist() == [4, 3, 2, 1, 0]
    out = torch.empty(5, 2, device="fl:0")[:, 0]
    torch.mul(x, 2, out=out)
    assert out.stride() == (2,)
    assert out.tolist() == [0, 4, 8, 12, 16]


def test_set_and_data():
    x, y = torch.zeros(3, device="fl:0"), torch.ones(4, device="fl:0")
    x.set_(y)
    assert x.tolist() == [1] * 4
    y[0] = 5
    assert x[0].item() == 5
    x.set_(y.untyped_storage())
    assert x.shape == (4,)
    x.set_(y.untyped_storage(), 1, (3,), (1,))
    assert x.tolist() == [1] * 3
    x.set_()
    assert x.numel() == 0
    parameter = torch.nn.Parameter(torch.zeros(2, device="fl:0"))
    parameter.data = torch.ones(7, device="fl:0")
    assert parameter.shape == (7,)


def test_set_is_refused_for_a_storage_of_another_device():
    x = torch.zeros(3, device="fl:0")
    with pytest.raises(RuntimeError, match=r"set_\(\) of a tensor of fl:0 to a storage of fl:1"):
        x.set_(torch.zeros(3, device="fl:1").untyped_storage())
    with pytest.raises(RuntimeError, match="storage offset = -1; 0 or more is allowed"):
        x.set_(x.untyped_storage(), -1, (3,), (1,))
    assert x.tolist() == [0] * 3


@pytest.mark.parametrize("other", ["cpu", "fl:1"])
def test_tensors_of_two_devices_are_refused(other: str):
    left, right = torch.ones(3, device="fl:0"), torch.ones(3, device=other)
    for first, second in ((left, right), (right, left)):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            torch.add(first, second)
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            torch.stack([first, second])
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            torch.dot(first, second)


def test_a_number_in_a_tensor_of_the_cpu_goes_with_every_device():
    x = torch.arange(3.0, device="fl:1")
    assert (x * torch.tensor(2.0)).tolist() == [0, 2, 4]
    assert (torch.tensor(1) + x).device == x.device
    x[torch.tensor([0, 2])] = 5.0
    assert x.tolist() == [5, 1, 5]


@pytest.mark.parametrize("source", ["cpu", "fl:0", "fl:1", "fl:3"])
@pytest.mark.parametrize("target", ["cpu", "fl:0", "fl:1", "fl:3"])
def test_copies_between_devices(source: str, target: str):
    x = torch.arange(91.0).view(7, 13)
    on_source = x.to(source)
    copy = on_source.t()[1:].to(target)
    assert copy.device == torch.device(target)
    assert torch.equal(copy.cpu(), x.t()[1:])
    out = torch.zeros(13, 7, dtype=torch.int32, device=target)
    out.copy_(on_source.t(), non_blocking=True)
    assert torch.equal(out.cpu(), x.t().int())


def test_copies_do_not_share_memory():
    x = torch.ones(3)
    y = x.to("fl:0")
    x.zero_()
    z = y.to("fl:1")
    y.zero_()
    assert z.tolist() == [1, 1, 1]
    assert y.to("fl:0") is y
    assert z.cpu().add_(1).tolist() == [2, 2, 2]
    assert z.tolist() == [1, 1, 1]


def test_a_broadcast_copy_and_a_copy_to_itself():
    x = torch.zeros(2, 3, device="fl:0")
    x.copy_(torch.arange(3.0))
    assert x.copy_(x) is x
    assert x.tolist() == [[0, 1, 2]] * 2


def test_numbers_come_back_to_python():
    x = torch.arange(3, device="fl:0")
    assert [int(element) for element in x] == x.tolist() == [0, 1, 2]
    assert bool(x[1])
    assert x.sum().item() == 3
    assert repr(x) == "tensor([0, 1, 2], device='fl:0')"
    with pytest.raises(TypeError, match="can't convert fl:0 device type tensor to numpy"):
        x.numpy()
    assert x.numpy(force=True).tolist() == [0, 1, 2]


def test_methods_that_torch_makes_for_a_device_type():
    x = torch.ones(2).fl()
    assert x.is_fl
    assert x.device == torch.device("fl:0")
    assert torch.nn.Linear(2, 2).fl().weight.is_fl
    assert x.untyped_storage().is_fl
    assert not torch.ones(2).is_fl


def test_inference_mode_and_no_grad():
    with torch.inference_mode():
        x = torch.randn(3, 3, device="fl:0")
        y = x @ x
        assert y.is_inference()
        y.add_(1)
        y[0].mul_(2)
    with torch.no_grad():
        z = torch.randn(3, device="fl:0", requires_grad=True) * 2
    assert not z.requires_grad


def test_threads_share_a_weight():
    weight = torch.randn(32, 32, device="fl:0")
    expected = (weight @ weight).relu().cpu()
    wrong = []

    def work():
        for _ in range(50):
            x = (weight @ weight).relu()
            if not torch.equal(x.cpu(), expected):
                wrong.append(x)
            x.resize_(0)
            weight.t()[1:].sum().item()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_operators_of_other_libraries():
    library = torch.library.Library("fl_test_other", "DEF")
    library.define("square(Tensor x) -> Tensor")
    library.impl("square", lambda x: x * x, "CPU")
    try:
        result = torch.ops.fl_test_other.square(torch.full((2,), 3.0, device="fl:1"))
        assert result.device == torch.device("fl:1")
        assert result.tolist() == [9, 9]
        assert counts(1)["fl_test_other::square", "native"] == 1
    finally:
        library._destroy()


@pytest.mark.parametrize("write", [lambda x: x.add_(1), lambda x: x.addcmul_(x, x)])
def test_a_lazy_clone_gets_memory_at_its_first_write(write: Callable[[torch.Tensor], object]):
    x = torch.ones(3, device="fl:0")
    clone = torch._lazy_clone(x)
    write(clone)
    assert clone.tolist() == [2] * 3
    assert x.tolist() == [1] * 3
    assert clone.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("name", ["relu", "mm", "add.Tensor", "add_.Tensor", "_softmax"])
def test_operators_of_small_models_are_called_without_boxing(name: str):
    kernels = torch._C._dispatch_dump(f"aten::{name}").splitlines()
    (kernel,) = [line for line in kernels if line.startswith("PrivateUse1:")]
    assert "[ boxed unboxed ]" in kernel


def test_layouts_that_are_not_there_are_refused():
    with pytest.raises(NotImplementedError, match="layout"):
        torch.ones(2, 2, device="fl:0").to_sparse()
    with pytest.raises(NotImplementedError, match="arguments from the 'SparseCsrfl' backend"):
        torch.empty(2, 2, device="fl:0", layout=torch.sparse_csr)

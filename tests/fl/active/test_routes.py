"""Which way an operator is computed where the device has no kernel: the simulated device lacks
float64, and some operators; its memory counts as separate from the CPU's.
"""

import warnings

import pytest
import torch

from lightning_mp.fl.generic_kernels import (
    register_generic_kernel,
    remove_generic_kernels,
    set_generic_precision,
)
from lightning_mp.fl.routes import operator_counts, reset_operator_counts, route, set_routes

SIM = "fl:3"


@pytest.fixture(autouse=True)
def routes_restored():
    set_routes(warn=False)
    reset_operator_counts()
    yield
    remove_generic_kernels("aten::tril")
    set_generic_precision("default")
    set_routes()


def counted(name: str, device: str = SIM) -> dict[str, tuple[int, int]]:
    return {
        count.route: (count.num_calls, count.num_copied_bytes)
        for count in operator_counts(device)
        if count.name == name
    }


def test_a_missing_operator_runs_on_the_cpu_with_copies():
    x = torch.arange(12.0, device=SIM).view(3, 4)
    result = torch.tril(x)
    assert result.device == torch.device(SIM)
    assert torch.equal(result.cpu(), torch.arange(12.0).view(3, 4).tril())
    assert counted("aten::tril") == {"cpu_fallback": (1, 2 * 48)}


def test_the_kernel_of_the_device_runs_where_it_has_one():
    torch.ones(3, 4, device="fl:0").tril()
    torch.ones(3, 4, device=SIM).triu()
    assert counted("aten::tril", "fl:0") == {"native": (1, 0)}
    assert counted("aten::triu") == {"native": (1, 0)}


def test_a_missing_dtype_runs_on_the_cpu():
    x = torch.arange(3.0, dtype=torch.float64, device=SIM)
    assert (x * 2).tolist() == [0, 2, 4]
    assert counted("aten::mul.Tensor")["cpu_fallback"][0] == 1
    assert (torch.ones(3, device=SIM) * 2).sum().item() == 6
    assert counted("aten::mul.Tensor")["native"][0] == 1


def test_out_in_place_and_aliases_of_the_cpu_fallback():
    x = torch.ones(3, 3, device=SIM)
    out = torch.empty(0, device=SIM)
    assert torch.tril(x, out=out) is out
    assert out.shape == (3, 3)
    assert out.sum().item() == 6
    double = torch.arange(4.0, dtype=torch.float64, device=SIM)
    view = double.view(2, 2).t()
    assert view.add_(1) is view
    assert double.tolist() == [1, 2, 3, 4]
    assert torch.cat([double, double]).tolist() == [1, 2, 3, 4] * 2
    assert double[double > 2].tolist() == [3, 4]
    other = double.clone()
    torch._foreach_add_([double, other], 1.0)
    assert double.tolist() == other.tolist() == [2, 3, 4, 5]
    with pytest.raises(NotImplementedError, match="that writes two tensors of one storage = not"):
        torch._foreach_add_([double, view], 1.0)
    assert double.tolist() == [2, 3, 4, 5]


def test_the_cpu_fallback_draws_from_the_generator_of_the_device():
    torch.manual_seed(4)
    expected = torch.rand(7, dtype=torch.float64)
    torch.manual_seed(4)
    assert torch.equal(torch.rand(7, dtype=torch.float64, device=SIM).cpu(), expected)


def test_gradients_go_through_the_cpu_fallback():
    x = torch.ones(3, 3, device=SIM, requires_grad=True)
    (x.tril() * 2).sum().backward()
    assert torch.equal(x.grad.cpu(), 2 * torch.ones(3, 3).tril())


def test_tensors_of_two_devices_are_refused_by_the_cpu_fallback_too():
    x = torch.ones(3, dtype=torch.float64, device=SIM)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.add(x, torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize(
    "settings",
    [
        {"enable_cpu_fallback": False},
        {"deny": ["aten::tril"]},
        {"enable_cpu_fallback": False, "allow": ["aten::triu"]},
    ],
)
def test_without_a_way_the_operator_is_refused(settings: dict[str, object]):
    x = torch.ones(3, 3, device=SIM)
    set_routes(warn=False, **settings)
    with pytest.raises(
        NotImplementedError,
        match=r"operator aten::tril of float32 on fl:3 \(simulated\) = not available; it has no",
    ):
        x.tril()
    assert counted("aten::tril") == {"refused": (1, 0)}
    assert route("aten::tril", torch.float32, SIM) == "refused"
    set_routes(warn=False)
    assert x.tril().sum().item() == 6


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"deny": ["aten::tril"]}, ("refused", "refused")),
        ({"deny": ["aten::tril.out"]}, ("cpu_fallback", "refused")),
        (
            {"enable_cpu_fallback": False, "allow": ["aten::tril"]},
            ("cpu_fallback", "cpu_fallback"),
        ),
        (
            {"deny": ["aten::tril"], "allow": ["aten::tril.out"]},
            ("refused", "cpu_fallback"),
        ),
    ],
)
def test_a_name_without_overload_stands_for_all_of_them(settings, expected):
    set_routes(warn=False, **settings)
    names = ("aten::tril", "aten::tril.out")
    assert tuple(route(name, torch.float32, SIM) for name in names) == expected


def test_a_generic_kernel_comes_before_the_cpu():
    @register_generic_kernel("aten::tril")
    def tril(x, diagonal=0):
        rows = torch.arange(x.shape[-2], device=x.device)[:, None]
        return x * (torch.arange(x.shape[-1], device=x.device) <= rows + diagonal)

    x = torch.rand(3, 4, device=SIM, requires_grad=True)
    result = x.tril(1)
    assert torch.equal(result.cpu(), x.cpu().tril(1))
    result.sum().backward()
    assert torch.equal(x.grad.cpu(), torch.ones(3, 4).tril(1))
    assert list(counted("aten::tril")) == ["generic"]
    assert route("aten::tril", torch.float32, SIM) == "generic"
    set_routes(enable_generic_kernel=False, warn=False)
    assert route("aten::tril", torch.float32, SIM) == "cpu_fallback"
    set_routes(warn=False)
    remove_generic_kernels("aten::tril")
    assert route("aten::tril", torch.float32, SIM) == "cpu_fallback"


def test_the_precision_chooses_among_generic_kernels():
    for precision, value in (("default", 0.0), ("accurate", 1.0), ("fast", 2.0)):
        register_generic_kernel("aten::tril", precision=precision)(
            lambda x, diagonal=0, value=value: torch.full_like(x, value)
        )
    x = torch.ones(2, 2, device=SIM)
    for precision, value in (("default", 0.0), ("accurate", 1.0), ("fast", 2.0)):
        set_generic_precision(precision)
        assert x.tril().sum().item() == 4 * value
    remove_generic_kernels("aten::tril")


def test_names_of_operators_and_precisions_are_checked():
    with pytest.raises(
        ValueError, match="operator = 'aten::no_such'; operators with their overload"
    ):
        register_generic_kernel("aten::no_such")
    with pytest.raises(
        ValueError, match="precision = 'exact'; default, accurate, fast are allowed"
    ):
        register_generic_kernel("aten::tril", precision="exact")
    with pytest.raises(
        ValueError, match="precision = 'exact'; default, accurate, fast are allowed"
    ):
        set_generic_precision("exact")


def test_one_warning_per_operator_and_route():
    set_routes()
    x = torch.ones(5, device=SIM)
    with pytest.warns(UserWarning, match="operator aten::roll of float32 on fl:3 runs on the CPU"):
        x.roll(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x.roll(1)
    assert counted("aten::roll")["cpu_fallback"][0] == 2


@pytest.mark.parametrize(
    ("name", "dtype", "device", "expected"),
    [
        ("aten::tril", torch.float32, "fl:0", "native"),
        ("aten::tril", torch.float32, SIM, "cpu_fallback"),
        ("aten::add.Tensor", torch.float32, SIM, "native"),
        ("aten::add.Tensor", torch.float64, SIM, "cpu_fallback"),
        ("aten::add.Tensor", torch.float64, "fl:1", "native"),
        ("aten::linear", torch.float32, "fl:0", "composed"),
        ("aten::t", torch.float32, "fl:0", "composed"),
    ],
)
def test_a_route_is_known_without_a_call(name: str, dtype: torch.dtype, device: str, expected: str):
    assert route(name, dtype, device) == expected
    assert operator_counts(device) == []

"""Users' own policies: decorators and registration by name."""

import copy
import pickle
import types
from dataclasses import dataclass

import pytest
import torch
from support.o1_implementations import IMPLEMENTATIONS
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_mp.amp.function_casts import FunctionCasts, disable_casts
from lightning_mp.amp.function_registry import (
    float_function,
    half_function,
    promote_function,
    register_float_function,
    register_half_function,
    register_promote_function,
    unregister,
    unregister_all,
)

FP32 = torch.float32


@pytest.fixture(params=[torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def half(request):
    return request.param


@pytest.fixture(params=IMPLEMENTATIONS)
def casts(request, half):
    return FunctionCasts(half, implementation=request.param, device_types=("cpu",))


@pytest.fixture(autouse=True)
def _clean_registry():
    yield
    unregister_all()


@pytest.fixture
def module():
    """A user's module with a function, a class and what is no function."""
    module = types.ModuleType("users_module")

    def scan(x, y=None):
        return x.dtype

    class Base:
        @classmethod
        def apply(cls, x):
            return cls, x.dtype

        @staticmethod
        def plain(x):
            return x.dtype

        def method(self, x):
            return self, x.dtype

    class Child(Base):
        pass

    module.scan, module.Base, module.Child, module.value = scan, Base, Child, 3
    return module


def dtypes_of(x, pair, *, options):
    return [x.dtype, pair[0].dtype, pair[1][0].dtype, options["deep"]["mask"].dtype]


@dataclass
class Batch:
    image: Tensor
    label: Tensor


@pytest.mark.parametrize("is_decorated_first", [True, False])
def test_decorators_hold_whenever_casts_are_on(half, is_decorated_first):
    casts = None if is_decorated_first else FunctionCasts(half, implementation="python")
    decorators = (half_function, float_function, promote_function)
    to_half, to_fp32, to_wider = (decorate(dtypes_of) for decorate in decorators)
    casts = casts or FunctionCasts(half, implementation="python")

    def call(function, first):
        return function(
            torch.ones(3, dtype=first),
            (torch.ones(3, dtype=half), [torch.ones(3, dtype=half)]),
            options={"deep": {"mask": torch.ones(3, dtype=torch.bool)}},
        )

    for function in (to_half, to_fp32, to_wider):
        assert call(function, FP32) == [FP32, half, half, torch.bool]
    with casts.context():
        assert call(to_half, FP32) == [half, half, half, torch.bool]
        assert call(to_fp32, half) == [FP32, FP32, FP32, torch.bool]
        assert call(to_wider, FP32) == [FP32, FP32, FP32, torch.bool]
        assert call(to_wider, half) == [half, half, half, torch.bool]
        with disable_casts():
            assert call(to_half, FP32) == [FP32, half, half, torch.bool]


def test_dataclasses_and_other_dtypes(casts, half):
    @half_function
    def function(batch, double):
        return batch.image.dtype, batch.label.dtype, double.dtype

    with casts.context():
        seen = function(Batch(torch.ones(3), torch.arange(3)), torch.ones(3).double())
    assert seen == (half, torch.int64, torch.float64)


class Model:
    @half_function
    def method(self, x):
        """Say what x is."""
        return self, x.dtype

    @half_function
    @staticmethod
    def static(x):
        return x.dtype

    @classmethod
    @float_function
    def of_class(cls, x):
        return cls, x.dtype


@half_function
def module_level(x):
    return x.dtype


def undecorated(x):
    return x.dtype


def test_methods(casts, half):
    model = Model()
    with casts.context():
        assert model.method(torch.ones(3)) == (model, half)
        assert Model.method(model, torch.ones(3)) == (model, half)
        assert model.static(torch.ones(3)) == half
        assert model.of_class(torch.ones(3, dtype=half)) == (Model, FP32)
    assert Model.method.__doc__ == "Say what x is."
    assert Model.method.__name__ == "method"


def test_half_function_shares_the_cast_of_a_weight(casts):
    weight = nn.Parameter(torch.ones(3, 3))
    kept = half_function(lambda w: w)
    with casts.context():
        assert kept(weight) is kept(weight)
        kept(weight).float().sum().backward()
    assert weight.grad.dtype == FP32


def test_pickle_and_copy(casts, half):
    alias = half_function(undecorated)
    for function in (module_level, alias, Model.method):
        for other in (pickle.loads(pickle.dumps(function)), copy.deepcopy(function)):
            assert other.__name__ == function.__name__
    assert pickle.loads(pickle.dumps(module_level)) is module_level
    with casts.context():
        assert pickle.loads(pickle.dumps(alias))(torch.ones(3)) == half


class MyFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scales):
        ctx.set_materialize_grads(False)
        MyFunction.seen = x.dtype
        return x * 2

    @staticmethod
    def backward(ctx, *grad_outputs):
        return grad_outputs[0] * 2, None


class Sibling(MyFunction):
    pass


@pytest.mark.parametrize("is_registered_first", [True, False])
def test_custom_autograd_function(half, is_registered_first):
    casts = None if is_registered_first else FunctionCasts(half, implementation="python")
    original = MyFunction.apply
    register_float_function(MyFunction, "apply")
    casts = casts or FunctionCasts(half, implementation="python")
    x = torch.ones(3, dtype=half, requires_grad=True)
    with casts.context():
        y = MyFunction.apply(x, [1.0])
        assert (MyFunction.seen, y.dtype) == (FP32, FP32)
        y.sum().backward()
        assert Sibling.apply(x, [1.0]).dtype == FP32
    assert (x.grad == 2).all()
    assert x.grad.dtype == half
    unregister(MyFunction, "apply")
    assert "apply" not in vars(MyFunction)
    assert MyFunction.apply == original


def test_python_function_is_replaced_and_put_back(casts, half, module):
    original = module.scan
    register_half_function(module, "scan")
    assert module.scan(torch.ones(3)) == FP32
    with casts.context():
        assert module.scan(torch.ones(3)) == half
    register_half_function(module, "scan")
    assert module.scan.function is original
    register_promote_function(module, "scan")
    assert module.scan.function is original
    with casts.context():
        assert module.scan(torch.ones(3, dtype=half)) == half
    unregister(module, "scan")
    assert module.scan is original


def test_registering_a_decorated_function_does_not_nest(casts, half, module):
    decorated = module.scan = half_function(module.scan)
    register_float_function(module, "scan")
    with casts.context():
        assert module.scan(torch.ones(3, dtype=half)) == FP32
    unregister(module, "scan")
    assert module.scan is decorated


def test_methods_of_a_class(casts, half, module):
    raw = dict(vars(module.Base))
    for name in ("apply", "plain", "method"):
        register_half_function(module.Base, name)
    instance, x = module.Base(), torch.ones(3)
    with casts.context():
        assert module.Base.apply(x) == (module.Base, half)
        assert module.Child.apply(x) == (module.Child, half)
        assert instance.plain(x) == half
        assert instance.method(x) == (instance, half)
    unregister_all()
    assert dict(vars(module.Base)) == raw


def test_class_method_written_in_c(half):
    class Table(dict):
        pass

    register_half_function(Table, "fromkeys")
    with FunctionCasts(half, implementation="python").context():
        table = Table.fromkeys(["a"], torch.ones(3))
    assert (type(table), table["a"].dtype) == (Table, half)
    unregister(Table, "fromkeys")
    assert Table.fromkeys(["a"], torch.ones(3))["a"].dtype == FP32
    assert "fromkeys" not in vars(Table)


def test_registration_with_a_subclass_leaves_the_base_alone(casts, half, module):
    register_half_function(module.Child, "apply")
    with casts.context():
        assert module.Child.apply(torch.ones(3)) == (module.Child, half)
        assert module.Base.apply(torch.ones(3)) == (module.Base, FP32)
    unregister(module.Child, "apply")
    assert "apply" not in vars(module.Child)


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (torch, "sin", torch.sin),
        (torch, "mm", lambda x: torch.mm(x, x)),
        (torch.nn.functional, "silu", F.silu),
        (torch.nn.functional, "tanh", F.tanh),
        (Tensor, "__matmul__", lambda x: x @ x),
        (Tensor, "__mul__", lambda x: x * x),
        (Tensor, "__rmul__", lambda x: 2 * x),
        (Tensor, "cos", lambda x: x.cos()),
        (torch.nn.functional, "softmax", lambda x: F.softmax(x, -1)),
        (torch.nn.functional, "max_pool1d", lambda x: F.max_pool1d(x[None], 2)),
        (torch.ops.aten, "tanh", torch.ops.aten.tanh),
    ],
)
def test_torch_functions(casts, half, owner, name, call):
    function = getattr(owner, name)
    with casts.context():
        before = call(torch.ones(3, 3, dtype=half)).dtype
    register_half_function(owner, name)
    with casts.context():
        assert call(torch.ones(3, 3)).dtype == half
        register_float_function(owner, name)
        assert call(torch.ones(3, 3, dtype=half)).dtype == FP32
        assert getattr(owner, name) is function
        unregister(owner, name)
        assert call(torch.ones(3, 3, dtype=half)).dtype == before
    assert call(torch.ones(3, 3)).dtype == FP32


def test_torch_function_registered_in_a_region(half):
    with FunctionCasts(half, implementation="python").context():
        register_half_function(torch, "sin")
        assert torch.sin(torch.ones(3)).dtype == half


def test_two_names_of_one_function(casts, half):
    x = torch.ones(3, 3)
    register_float_function(torch.Tensor, "matmul")
    register_half_function(torch.Tensor, "__matmul__")
    with casts.context():
        assert (x @ x).dtype == half
        unregister(torch.Tensor, "__matmul__")
        assert (x @ x).dtype == FP32
        unregister(torch.Tensor, "matmul")
        assert (x @ x).dtype == half


def test_promoting_torch_function(casts, half):
    register_promote_function(torch, "hypot")
    with casts.context():
        x, zero_dim = torch.ones(3, dtype=half), torch.tensor(1.0)
        assert torch.hypot(x, zero_dim).dtype == FP32
        assert torch.hypot(x, x).dtype == half


# Defined once: the end of an earlier definition would take the operator away at any time.
@torch.library.custom_op("lmp_registry_test::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


def test_custom_operator(casts, half):
    register_float_function(torch.ops.lmp_registry_test, "twice")
    with casts.context():
        assert twice(torch.ones(3, dtype=half)).dtype == FP32
        assert torch.ops.lmp_registry_test.twice(torch.ones(3, dtype=half)).dtype == FP32


def test_missing_name(module):
    with pytest.raises(ValueError, match=r"name = 'scam'; users_module has no.*mean 'scan'"):
        register_half_function(module, "scam")
    with pytest.raises(ValueError, match=r"name = 'zzz'; .*MyFunction has no such name$"):
        register_float_function(MyFunction, "zzz")
    with pytest.raises(ValueError, match=r"users_module.scan = not registered; allowed: \[\]"):
        unregister(module, "scan")


@pytest.mark.parametrize("name", ["value", "Base"])
def test_what_is_no_function(module, name):
    with pytest.raises(TypeError, match=f"users_module.{name} = .*; allowed: functions"):
        register_promote_function(module, name)


def test_replacement_by_somebody_else_is_not_undone(module):
    original = module.scan
    register_half_function(module, "scan")
    ours = module.scan
    module.scan = theirs = lambda x: x
    for call in (unregister, register_float_function):
        with pytest.raises(RuntimeError, match=r"users_module.scan = .*; allowed: what was put"):
            call(module, "scan")
    assert module.scan is theirs
    module.scan = ours
    unregister(module, "scan")
    assert module.scan is original


def test_compiled_code_follows_a_registration(casts, half):
    compiled = torch.compile(lambda x: torch.sin(x), backend="eager", fullgraph=True)
    x = torch.ones(3, dtype=half)
    for _ in range(2):
        with casts.context():
            assert compiled(x).dtype == half
        register_float_function(torch, "sin")
        with casts.context():
            assert compiled(x).dtype == FP32
        unregister(torch, "sin")


def test_compiled_decorated_function(casts, half):
    @torch.compile(backend="eager", fullgraph=True)
    def step(x):
        return scaled(x, factors=[x])

    scaled = half_function(lambda x, factors: x * factors[0])
    assert step(torch.ones(3)).dtype == FP32
    with casts.context():
        assert step(torch.ones(3)).dtype == half
        with disable_casts():
            assert step(torch.ones(3)).dtype == FP32

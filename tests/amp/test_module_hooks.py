"""State dicts are FP32, forwards cast, and copies of a converted model are independent."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from support.engine import Mlp, assert_same, make_batches, make_engine
from torch import Tensor, nn
from torch.nn.utils import parametrizations, weight_norm
from torch.overrides import _get_current_function_mode

LEVELS = ["O2-bf16", "O2-fp16", "O3-bf16"]


def convert(model: nn.Module, level: str = "O2-bf16") -> Any:
    engine = make_engine(level)
    engine.convert(model)
    return engine


def state_of(model: nn.Module) -> dict[str, Any]:
    return copy.deepcopy(dict(model.state_dict()))


class Parent(nn.Module):
    """A model in a model, with state of its own."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        self.model = Mlp(seed=seed)
        self.note = "unset"

    def get_extra_state(self) -> Any:
        return {"note": self.note, "table": torch.ones(2)}

    def set_extra_state(self, state: Any) -> None:
        self.note = state["note"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("prefix", ["", "nested.prefix."])
def test_a_state_dict_is_fp32_and_exact(level: str, prefix: str) -> None:
    model = Parent()
    expected = copy.deepcopy(dict(model.state_dict(prefix=prefix)))
    convert(model, level)
    found = dict(model.state_dict(prefix=prefix))
    extra = prefix + "_extra_state"
    assert found.pop(extra)["note"] == expected.pop(extra)["note"]
    assert_same(found, expected)
    assert {item.dtype for item in found.values()} == {torch.float32}


@pytest.mark.parametrize("part", ["model", "model.first"])
def test_a_part_saves_and_loads_fp32_too(part: str) -> None:
    model, other = Parent(), Parent(seed=2)
    expected = state_of(other.get_submodule(part))
    engine = convert(model)
    model.get_submodule(part).load_state_dict(expected)
    assert_same(state_of(model.get_submodule(part)), expected)
    engine.restore()
    assert_same(state_of(model.get_submodule(part)), expected)


def test_a_wrapper_saves_fp32() -> None:
    wrapper = nn.ModuleDict({"module": Mlp()})
    expected = state_of(wrapper)
    convert(wrapper["module"])
    assert_same(state_of(wrapper), expected)


@pytest.mark.parametrize("level", ["O2-bf16", "O2-fp16"])
def test_loading_is_exact(level: str) -> None:
    model, source = Parent(), Parent(seed=2)
    source.note = "loaded"
    expected = {name: item for name, item in state_of(source).items() if "extra" not in name}
    engine = convert(model, level)
    model.load_state_dict(source.state_dict())
    assert model.note == "loaded"
    found = {name: item for name, item in state_of(model).items() if "extra" not in name}
    assert_same(found, expected)
    weight = model.model.first.weight
    assert torch.equal(weight, expected["model.first.weight"].to(weight.dtype))
    engine.restore()
    assert torch.equal(model.model.first.weight, expected["model.first.weight"])


def test_o3_loads_into_the_half_weights() -> None:
    model = Mlp()
    engine = convert(model, "O3-bf16")
    engine.attach([torch.optim.SGD(model.parameters())])
    source = state_of(Mlp(seed=2))
    model.load_state_dict(source)
    assert torch.equal(model.first.weight, source["first.weight"].bfloat16())


def test_a_partial_load_touches_nothing_else() -> None:
    model, source = Mlp(), Mlp(seed=2)
    expected = state_of(model)
    convert(model)
    part = {"last.weight": source.state_dict()["last.weight"], "stranger": torch.ones(1)}
    expected["last.weight"] = part["last.weight"]
    result = model.load_state_dict(part, strict=False)
    assert result.unexpected_keys == ["stranger"]
    assert len(result.missing_keys) == len(expected) - 1
    assert_same(state_of(model), expected)


@pytest.mark.parametrize("is_converted", [True, False])
def test_a_wrong_shape_is_refused_as_torch_does(is_converted: bool) -> None:
    model, source = Mlp(), state_of(Mlp(seed=2))
    before = state_of(model)
    if is_converted:
        convert(model)
    source["first.weight"] = torch.ones(2, 2)
    with pytest.raises(RuntimeError, match=r"size mismatch for first\.weight"):
        model.load_state_dict(source)
    assert_same(state_of(model), {**source, "first.weight": before["first.weight"]})


def test_missing_keys_are_refused() -> None:
    model = Mlp()
    convert(model)
    with pytest.raises(RuntimeError, match=r"Missing key\(s\).*last\.bias"):
        model.load_state_dict({})


@pytest.mark.parametrize("part", ["", "first"])
def test_assigning_is_refused(part: str) -> None:
    model = Mlp()
    before = state_of(model)
    convert(model)
    source = Mlp(seed=2).get_submodule(part).state_dict()
    with pytest.raises(ValueError, match="assign=True"):
        model.get_submodule(part).load_state_dict(source, assign=True)
    assert_same(state_of(model), before)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_a_part_that_renames_keys_loads_exactly() -> None:
    old = weight_norm(nn.Linear(7, 3))
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(7, 3)))
    engine = convert(model)
    model.load_state_dict({f"0.{name}": item for name, item in old.state_dict().items()})
    engine.restore()
    parametrization = model[0].parametrizations.weight
    assert torch.equal(parametrization.original1, old.weight_v)


def test_a_user_hook_that_renames_saves_fp32() -> None:
    model = Mlp()
    expected = {f"renamed.{name}": item for name, item in state_of(model).items()}

    def rename(module: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
        for name in list(state):
            state[f"renamed.{name}"] = state.pop(name)

    model.register_state_dict_post_hook(rename)
    convert(model)
    # Hooks of the parts run before those of the whole.
    assert_same(state_of(model), expected)


def test_tied_weights_save_under_both_names() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(11, 7), "head": nn.Linear(7, 11, bias=False)})
    model["head"].weight = model["embed"].weight
    expected = state_of(model)
    convert(model)
    state = model.state_dict()
    assert_same(dict(state), expected)
    assert state["embed.weight"].data_ptr() == state["head.weight"].data_ptr()


DUPLICATES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "save": lambda model: torch.load(_saved(model), weights_only=False),
}


def _saved(model: nn.Module) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize("how", DUPLICATES)
def test_copies_are_independent_half_models(how: str) -> None:
    model = Mlp()
    before = state_of(model)
    engine = convert(model)
    twin = DUPLICATES[how](model)
    assert twin.first.weight.dtype == torch.bfloat16
    assert twin.state_dict()["first.weight"].dtype == torch.bfloat16
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not any(item.any() for item in twin.state_dict().values())
    assert_same(state_of(model), before)
    engine.restore()
    assert_same(state_of(model), before)
    twin.load_state_dict(before)
    assert twin.float()(torch.randn(5, 13)).dtype == torch.float32


def test_remove_leaves_no_hook() -> None:
    model = Parent()
    engine = convert(model)
    assert model.model.first._state_dict_hooks
    engine.restore()
    for part in model.modules():
        hooks = (
            part._state_dict_hooks,
            part._load_state_dict_pre_hooks,
            part._forward_hooks,
            part._forward_pre_hooks,
        )
        assert not any(hooks)


class Recorder(nn.Module):
    """Returns what it gets and remembers the dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return {"args": list(args), "kwargs": kwargs, "hidden": self.layer(torch.ones(1, 3))}


@pytest.mark.parametrize("level", LEVELS)
def test_inputs_become_half_and_outputs_fp32(level: str) -> None:
    model = Recorder()
    engine = convert(model, level)
    seen: list[Any] = []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append((args, kwargs)), with_kwargs=True
    )
    batch = {"x": torch.ones(3), "label": torch.arange(3), "text": "a"}
    output = model(torch.ones(2), (torch.ones(2, dtype=torch.float64), 3), batch=batch)
    half = engine.properties.half_dtype
    args, kwargs = seen[0]
    assert (args[0].dtype, args[1][0].dtype, args[1][1]) == (half, half, 3)
    assert kwargs["batch"]["x"].dtype == half
    assert kwargs["batch"]["label"].dtype == torch.int64
    assert batch["x"].dtype == torch.float32
    assert output["args"][0].dtype == output["hidden"].dtype == torch.float32
    assert output["kwargs"]["batch"]["text"] == "a"
    assert _get_current_function_mode() is None


class Failing(nn.Module):
    """Raises what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, error: BaseException | None) -> Tensor:
        if error is not None:
            raise error
        return self.layer(torch.ones(1, 3))


def test_an_exception_in_forward_leaves_the_mode() -> None:
    model = Failing()
    convert(model)
    with pytest.raises(ZeroDivisionError):
        model(ZeroDivisionError())
    assert _get_current_function_mode() is None
    assert model(None).dtype == torch.float32


def test_an_interrupt_in_forward_leaves_the_mode_at_the_end() -> None:
    model = Failing()
    engine = convert(model)
    with pytest.raises(KeyboardInterrupt):
        model(KeyboardInterrupt())
    engine.restore()
    assert _get_current_function_mode() is None


def test_a_pre_hook_that_raises_first() -> None:
    model = Failing()

    def refuse(*_: Any) -> None:
        raise ZeroDivisionError

    handle = model.register_forward_pre_hook(refuse)
    convert(model)
    # A warning would tell of an error in our own hook.
    with pytest.raises(ZeroDivisionError):
        model(None)
    handle.remove()
    assert model(None).dtype == torch.float32
    assert _get_current_function_mode() is None


def test_borrowed_calls_pass_untouched_and_own_calls_do_not() -> None:
    """As DDP strategies do it: ``forward`` is borrowed for one call and put back during it."""
    model = Mlp()
    convert(model)
    own = model.forward
    batch = make_batches(1)[0][0]
    seen: list[torch.dtype] = []

    def training_step(x: Tensor) -> Tensor:
        seen.append(x.dtype)
        seen.append(model(x).dtype)
        return model.first(x.bfloat16()).sum()

    def borrowed(x: Tensor) -> Tensor:
        model.forward = own
        return training_step(x)

    for _ in range(2):
        model.forward = borrowed
        assert model(batch).dtype == torch.bfloat16
    assert seen == [torch.float32, torch.float32] * 2
    assert model(batch).dtype == torch.float32
    assert _get_current_function_mode() is None


def test_a_recursive_forward() -> None:
    class Recursive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor, depth: int) -> Tensor:
            return self.layer(x) if depth == 0 else self(x, depth - 1)

    model = Recursive()
    convert(model)
    assert model(torch.ones(1, 3), 3).dtype == torch.float32
    assert _get_current_function_mode() is None

"""Casts of nested data: dtypes, classes of containers, identity of what did not change."""

import copy
from collections import OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from lightning_mp.amp import cast_floating, map_tensors

FP16 = torch.float16
Point = namedtuple("Point", ["x", "index"])


class NamedDict(dict):
    """A dict subclass whose constructor wants something else, with an attribute."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


class NamedList(list):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


class Pair(tuple):
    """A tuple subclass with its own __new__, and an attribute."""

    note: str

    def __new__(cls, left: Any, right: Any) -> "Pair":
        return super().__new__(cls, (left, right))


class Encoding(UserDict):
    """What transformers' BatchEncoding is: a UserDict with a ``to`` for devices only."""

    def __init__(self, data: dict[str, Any], encodings: object) -> None:
        super().__init__(data)
        self.encodings = encodings

    def to(self, device: Any) -> "Encoding":
        raise AssertionError(f"called with {device}")


class Batch:
    """A batch whose ``to`` works in place and takes devices only."""

    def __init__(self) -> None:
        self.x, self.ids = torch.ones(7), torch.arange(7)

    def to(self, device: Any) -> "Batch":
        raise AssertionError(f"called with {device}")


class SlottedBatch:
    __slots__ = ("__dict__", "__weakref__", "ids", "unset", "x")

    def __init__(self) -> None:
        self.x, self.ids = torch.ones(7), torch.arange(7)
        self.extra = torch.ones(3)

    def to(self, device: Any) -> "SlottedBatch":
        raise AssertionError(f"called with {device}")


@dataclass
class Sample:
    x: Tensor
    ids: Tensor
    total: float = field(init=False)

    def __post_init__(self) -> None:
        self.total = float(self.x.sum())


@dataclass(frozen=True)
class FrozenSample:
    x: Tensor
    derived: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "derived", self.x * 2)


@dataclass(frozen=True, slots=True)
class SlottedSample:
    x: Tensor
    label: int


@dataclass
class HalfBuilt:
    x: Tensor
    later: Tensor = field(init=False)


class MyTensor(Tensor):
    pass


def make_named_dict() -> NamedDict:
    data = NamedDict("batch")
    data.update(x=torch.ones(3), ids=torch.arange(3))
    return data


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16])
def test_floating_tensors_are_cast(source):
    result = cast_floating(torch.ones(7, dtype=source), FP16)
    assert result.dtype is FP16
    assert torch.equal(result, torch.ones(7, dtype=FP16))


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64, FP16])
def test_other_tensors_are_returned_themselves(dtype):
    tensor = torch.ones(7, dtype=dtype)
    assert cast_floating(tensor, FP16) is tensor
    data = {"a": [tensor, (tensor,)]}
    assert cast_floating(data, FP16) is data


def test_tensor_subclass_is_kept():
    result = cast_floating(torch.ones(3).as_subclass(MyTensor), FP16)
    assert type(result) is MyTensor
    assert result.dtype is FP16


def test_gradients_flow_through_the_cast():
    x = torch.ones(3, requires_grad=True)
    cast_floating([x], FP16)[0].sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones(3))


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"x": torch.ones(3), "ids": torch.arange(3)},
        lambda: OrderedDict(x=torch.ones(3), ids=torch.arange(3)),
        lambda: defaultdict(list, x=torch.ones(3), ids=torch.arange(3)),
        lambda: UserDict(x=torch.ones(3), ids=torch.arange(3)),
        lambda: MappingProxyType({"x": torch.ones(3), "ids": torch.arange(3)}),
        lambda: Encoding({"x": torch.ones(3), "ids": torch.arange(3)}, encodings="kept"),
        make_named_dict,
    ],
)
def test_mappings_keep_class_order_and_attributes(make):
    data = make()
    attributes = {**getattr(data, "__dict__", {})}
    attributes.pop("data", None)  # the items of a UserDict
    result = cast_floating(data, FP16)
    assert type(result) is type(data)
    assert result is not data
    assert list(result) == ["x", "ids"]
    assert result["x"].dtype is FP16
    assert result["ids"] is data["ids"]
    assert data["x"].dtype is torch.float32
    for name, value in attributes.items():
        assert getattr(result, name) is value


def test_default_factory_is_kept():
    result = cast_floating(defaultdict(list, x=torch.ones(3)), FP16)
    assert result["missing"] == []


@pytest.mark.parametrize(
    "make",
    [
        list,
        tuple,
        UserList,
        lambda items: deque(items, maxlen=5),
        lambda items: Point(*items),
        lambda items: Pair(*items),
    ],
)
def test_sequences_keep_their_class(make):
    data = make([torch.ones(3), torch.arange(3)])
    result = cast_floating(data, FP16)
    assert type(result) is type(data)
    assert len(result) == 2
    assert result[0].dtype is FP16
    assert result[1] is data[1]
    assert data[0].dtype is torch.float32
    assert getattr(result, "maxlen", None) == getattr(data, "maxlen", None)


def test_list_and_tuple_subclasses_keep_attributes():
    names = NamedList("batch")
    names.append(torch.ones(3))
    result = cast_floating(names, FP16)
    assert (type(result), result.name, result[0].dtype) == (NamedList, "batch", FP16)
    pair = Pair(torch.ones(3), 5)
    pair.note = "kept"
    assert cast_floating(pair, FP16).note == "kept"


def test_return_types_of_torch():
    result = cast_floating(torch.max(torch.ones(3, 7), dim=1), FP16)
    assert type(result) is torch.return_types.max
    assert (result.values.dtype, result.indices.dtype) == (FP16, torch.int64)


def test_packed_sequence_keeps_its_integers():
    packed = pack_sequence([torch.ones(7, 3), torch.ones(13, 3)], enforce_sorted=False)
    result = cast_floating(packed, FP16)
    assert type(result) is PackedSequence
    assert result.data.dtype is FP16
    assert result.batch_sizes is packed.batch_sizes
    assert result.sorted_indices is packed.sorted_indices
    assert result.unsorted_indices is packed.unsorted_indices
    bare = pack_sequence([torch.ones(3, 2)])
    assert cast_floating(bare, FP16).sorted_indices is None


def test_dataclasses():
    sample = Sample(torch.ones(7), torch.arange(7))
    sample.total = -1.0
    result = cast_floating(sample, FP16)
    assert type(result) is Sample
    assert (result.x.dtype, result.ids is sample.ids, result.total) == (FP16, True, -1.0)
    assert sample.x.dtype is torch.float32

    frozen = cast_floating(FrozenSample(torch.ones(7)), FP16)
    assert (frozen.x.dtype, frozen.derived.dtype) == (FP16, FP16)
    slotted = cast_floating(SlottedSample(torch.ones(7), 4), FP16)
    assert (type(slotted), slotted.x.dtype, slotted.label) == (SlottedSample, FP16, 4)
    half_built = cast_floating(HalfBuilt(torch.ones(7)), FP16)
    assert half_built.x.dtype is FP16
    assert not hasattr(half_built, "later")


@pytest.mark.parametrize("make", [Batch, SlottedBatch])
def test_objects_with_a_to_method_are_walked_not_called(make):
    batch = make()
    result = cast_floating(batch, FP16)
    assert type(result) is make
    assert result is not batch
    assert (result.x.dtype, result.ids is batch.ids) == (FP16, True)
    assert batch.x.dtype is torch.float32
    if make is SlottedBatch:
        assert (result.extra.dtype, batch.extra.dtype) == (FP16, torch.float32)
        assert not hasattr(result, "unset")


@pytest.mark.parametrize(
    "leaf",
    [
        "text",
        b"bytes",
        None,
        3,
        2.5,
        range(7),
        np.ones(3),
        np.float32(1.0),
        {1.5, 2.5},
        iter([torch.ones(3)]),
        (torch.ones(3) for _ in range(2)),
        torch.device("cpu"),
        torch.float32,
        Sample,
        Batch,
        MagicMock(),
        object(),
        bytearray(b"ab"),
    ],
    ids=lambda leaf: type(leaf).__name__,
)
def test_everything_else_is_untouched(leaf):
    assert cast_floating(leaf, FP16) is leaf
    assert cast_floating([leaf, torch.ones(3)], FP16)[0] is leaf


def test_iterators_are_not_consumed():
    iterator = iter([torch.ones(3), torch.ones(3)])
    cast_floating({"it": iterator}, FP16)
    assert len(list(iterator)) == 2


def test_modules_are_not_converted():
    module = nn.Linear(3, 3)
    assert cast_floating({"teacher": module}, FP16)["teacher"] is module
    assert module.weight.dtype is torch.float32


@pytest.mark.parametrize(
    "make",
    [
        dict,
        lambda **items: OrderedDict(items),
        lambda **items: tuple(items.values()),
        lambda **items: list(items.values()),
        lambda **items: Sample(torch.ones(3, dtype=FP16), items["inner"][0]),
    ],
)
def test_unchanged_containers_are_the_same_object(make):
    data = make(inner=[torch.arange(3), {"half": torch.ones(3, dtype=FP16)}], text="a")
    assert cast_floating(data, FP16) is data


def test_only_the_changed_branch_is_copied():
    data = {"ids": [torch.arange(3)], "x": [torch.ones(3)], "deep": ({"y": torch.ones(13)},)}
    result = cast_floating(data, FP16)
    assert result["ids"] is data["ids"]
    assert result["x"] is not data["x"]
    assert result["deep"][0]["y"].dtype is FP16
    assert data["deep"][0]["y"].dtype is torch.float32


def test_map_tensors_visits_each_tensor_once_in_order():
    seen = []
    data = copy.deepcopy(
        {"a": [torch.tensor(0), torch.tensor(1)], "b": Point(torch.tensor(2), "s")}
    )

    def visit(tensor):
        seen.append(int(tensor))
        return tensor

    assert map_tensors(visit, data) is data
    assert seen == [0, 1, 2]


def test_map_tensors_may_return_anything():
    assert map_tensors(lambda tensor: tensor.tolist(), {"a": [torch.arange(3)], "b": 1}) == {
        "a": [[0, 1, 2]],
        "b": 1,
    }

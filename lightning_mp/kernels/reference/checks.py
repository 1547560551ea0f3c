"""What every reference checks before it writes anything; the native library says the same."""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

__all__ = [
    "FLOATING",
    "check_found_inf",
    "check_length",
    "check_lists",
    "check_one_device",
    "check_one_dtype",
    "check_range",
    "check_scalars",
    "check_share",
    "check_tensor",
    "set_found_inf",
]

FLOATING = (torch.float32, torch.bfloat16, torch.float16)


def check_lists(
    name: str,
    lists: Mapping[str, tuple[Sequence[Tensor], Sequence[torch.dtype]]],
    *,
    written: Collection[str] = (),
    optional: Collection[str] = (),
) -> None:
    """Refuse lists that do not fit together, before an operation starts.

    Args:
        name: The operation.
        lists: Tensors and allowed dtypes of each list by name. The first is the one that the
            others have to match, in length, shapes and device.
        written: Lists whose tensors must not have two elements in one place.
        optional: Lists in which a tensor without elements and of any dtype means that there is
            none.

    Raises:
        RuntimeError: If something does not fit; names operation, list and index.
    """
    pivot = next(iter(lists))
    pivots = lists[pivot][0]
    for list_name, (tensors, _) in lists.items():
        check_length(name, list_name, tensors, (pivot, pivots))
    for list_name, (tensors, dtypes) in lists.items():
        for index, tensor in enumerate(tensors):
            what, expected = f"{list_name}[{index}]", pivots[index]
            _check_device(name, what, tensor, pivots[0].device)
            if list_name in optional and not tensor.numel():
                continue
            if tensor.dtype not in dtypes:
                allowed = " or ".join(_plain(dtype) for dtype in dtypes)
                _refuse(name, f"{what} is {_plain(tensor.dtype)}", allowed)
            if tensor.shape != expected.shape:
                needed = f"{list(expected.shape)}, as {pivot}[{index}],"
                _refuse(name, f"{what} has shape {list(tensor.shape)}", needed)
            if list_name in written and _has_repeats(tensor):
                _refuse(name, f"{what} has elements in one place", "memory of its own for each")


def check_length(
    name: str, list_name: str, tensors: Sequence[Tensor], pivot: tuple[str, Sequence[Tensor]]
) -> None:
    """Refuse a list of another length than the others.

    Args:
        name: The operation.
        list_name: The list's name.
        tensors: The list.
        pivot: Name and tensors of the list that says how many there are.

    Raises:
        RuntimeError: If they differ.
    """
    if len(tensors) != len(pivot[1]):
        _refuse(name, f"{list_name} has {len(tensors)} tensors", f"{len(pivot[1])}, as {pivot[0]},")


def check_scalars(
    name: str, tensors: Sequence[Tensor], scalars: Mapping[str, tuple[Tensor | None, torch.dtype]]
) -> None:
    """Refuse scalars that are not tensors of one element on the device of the others.

    Args:
        name: The operation.
        tensors: Tensors of the operation, which say where the scalars have to be; without any, the
            first scalar does.
        scalars: The scalars and their dtypes by name; ``None`` is skipped.

    Raises:
        RuntimeError: If a scalar is not.
    """
    device = tensors[0].device if tensors else None
    for scalar_name, (scalar, dtype) in scalars.items():
        if scalar is None:
            continue
        if scalar.dtype != dtype or scalar.numel() != 1:
            found = f"{scalar_name} is {_plain(scalar.dtype)} with {scalar.numel()} elements"
            _refuse(name, found, f"{_plain(dtype)} with 1 element")
        device = device or scalar.device
        _check_device(name, scalar_name, scalar, device)


def check_found_inf(name: str, tensors: Sequence[Tensor], found_inf: Tensor) -> None:
    """Refuse a flag that is neither one for all tensors nor a list of one for each.

    Args:
        name: The operation.
        tensors: Its tensors.
        found_inf: The flag, or flags.

    Raises:
        RuntimeError: If it is neither, or on another device.
    """
    is_list = found_inf.shape == (len(tensors),) and found_inf.is_contiguous()
    if found_inf.dtype != torch.float32 or not (found_inf.numel() == 1 or is_list):
        found = f"found_inf is {_plain(found_inf.dtype)} with {found_inf.numel()} elements"
        needed = f"float32 with 1 element, or contiguous with shape [{len(tensors)}],"
        _refuse(name, found, needed)
    if tensors:
        _check_device(name, "found_inf", found_inf, tensors[0].device)


def set_found_inf(found_inf: Tensor, is_finite: Sequence[Tensor]) -> None:
    """Set a flag for all tensors, or that of each; none is cleared.

    Args:
        found_inf: What :func:`check_found_inf` accepts.
        is_finite: A bool scalar for each tensor.
    """
    if is_finite:
        bad = ~torch.stack(list(is_finite))
        found_inf.masked_fill_(bad.any() if found_inf.numel() == 1 else bad, 1.0)


def check_one_device(name: str, arguments: Mapping[str, object]) -> None:
    """Refuse tensors on the meta device beside tensors elsewhere.

    Args:
        name: The operation.
        arguments: All its arguments by name.

    Raises:
        RuntimeError: If there is more than one device.
    """
    tensors: dict[str, Tensor] = {}
    for argument, value in arguments.items():
        if isinstance(value, Tensor):
            tensors[argument] = value
        elif isinstance(value, list | tuple):
            tensors |= {f"{argument}[{index}]": item for index, item in enumerate(value)}
    # Where the values are, if anywhere.
    devices = sorted((item.device for item in tensors.values()), key=_is_meta)
    for what, tensor in tensors.items():
        _check_device(name, what, tensor, devices[0])


def check_one_dtype(name: str, lists: Mapping[str, Sequence[Tensor]]) -> None:
    """Refuse lists of tensors that differ in dtype.

    Args:
        name: The operation.
        lists: The lists by name; the first tensor of the first says what the others have to be.

    Raises:
        RuntimeError: If one differs.
    """
    pivot = next(iter(lists), "")
    for list_name, tensors in lists.items():
        for index, tensor in enumerate(tensors):
            expected = lists[pivot][0].dtype
            if tensor.dtype != expected:
                needed = f"{_plain(expected)}, as {pivot}[0],"
                _refuse(name, f"{list_name}[{index}] is {_plain(tensor.dtype)}", needed)


def check_tensor(
    name: str,
    tensors: Mapping[str, Tensor | None],
    dtypes: Sequence[torch.dtype],
    sizes: Sequence[int],
    device: torch.device,
) -> None:
    """Refuse tensors of another dtype, shape or device than is needed.

    Args:
        name: The operation.
        tensors: The tensors by name; ``None`` is skipped.
        dtypes: What is allowed.
        sizes: Their shape.
        device: Their device.

    Raises:
        RuntimeError: If something does not fit.
    """
    for tensor_name, tensor in tensors.items():
        if tensor is None:
            continue
        _check_device(name, tensor_name, tensor, device)
        if tensor.dtype not in dtypes:
            allowed = " or ".join(_plain(dtype) for dtype in dtypes)
            _refuse(name, f"{tensor_name} is {_plain(tensor.dtype)}", allowed)
        if tensor.shape != tuple(sizes):
            _refuse(name, f"{tensor_name} has shape {list(tensor.shape)}", f"{list(sizes)}")


def check_range(
    name: str,
    argument: str,
    value: float | None,
    *,
    low: float = 0.0,
    below: float | None = None,
    is_open: bool = False,
) -> None:
    """Refuse a number outside a range.

    Args:
        name: The operation.
        argument: Its argument.
        value: The number; ``None`` is allowed.
        low: Lower end of the range.
        below: What the number has to be below; ``None`` for nothing.
        is_open: Whether ``low`` itself is outside.

    Raises:
        RuntimeError: If it is outside, or NaN.
    """
    if value is None:
        return
    is_above = value > low if is_open else value >= low
    if not (is_above and (below is None or value < below)):
        limit = f"{'above' if is_open else 'at least'} {low:g}"
        limit += "" if below is None else f" and below {below:g}"
        _refuse(name, f"{argument} = {value:g}", f"a number {limit}")


def check_share(name: str, argument: str, value: float) -> None:
    """Refuse a number that is not from 0 to 1.

    Args:
        name: The operation.
        argument: Its argument.
        value: The number.

    Raises:
        RuntimeError: If it is not, or NaN.
    """
    if not 0.0 <= value <= 1.0:
        _refuse(name, f"{argument} = {value:g}", "a number from 0 to 1")


def _refuse(name: str, found: str, needed: str) -> None:
    # RuntimeError, as from the checks of the native library, which can raise no other.
    raise RuntimeError(f"lightning_mp::{name}: {found}; {needed} is needed")


def _check_device(name: str, what: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        _refuse(name, f"{what} is on {tensor.device}", f"one device for all, here {device},")


def _is_meta(device: torch.device) -> bool:
    return device.type == "meta"


def _has_repeats(tensor: Tensor) -> bool:
    """Tell whether a dimension repeats its elements, as that of an expanded tensor does."""
    return any(
        size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

"""Memory: what is counted, kept for reuse, limited and given back; storages and their twins."""

import gc

import pytest
import torch

from lightning_mp.fl.library import fl_operators

MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_cached():
    gc.collect()
    torch.fl.empty_cache()
    yield
    gc.collect()
    torch.fl.empty_cache()


@pytest.mark.parametrize("index", [0, 1, 3])
def test_bytes_in_use_are_counted_on_their_device(index: int):
    before = {i: torch.fl.memory_allocated(i) for i in torch.fl.device_ids()}
    tensor = torch.empty(MIB, device=f"fl:{index}")
    now = {i: torch.fl.memory_allocated(i) - before[i] for i in before}
    assert now == {i: 4 * MIB * (i == index) for i in before}
    del tensor
    assert torch.fl.memory_allocated(index) == before[index]


def test_a_reset_peak_starts_from_what_is_in_use():
    live = torch.empty(MIB, device="fl:1")
    torch.empty(2 * MIB, device="fl:1")
    assert torch.fl.max_memory_allocated(1) >= torch.fl.memory_allocated(1) + 8 * MIB
    torch.fl.reset_peak_memory_stats(1)
    assert torch.fl.max_memory_allocated(1) == torch.fl.memory_allocated(1) >= live.nbytes
    torch.accelerator.reset_peak_memory_stats(1)
    assert torch.accelerator.max_memory_allocated(1) == torch.fl.max_memory_allocated(1)


def test_freed_memory_is_kept_and_used_again():
    address = torch.empty(7 * 103, device="fl:1").data_ptr()
    count = torch.fl.memory_stats(1)["num_host_allocs"]
    assert torch.empty(7 * 103, device="fl:1").data_ptr() == address
    assert torch.fl.memory_stats(1)["num_host_allocs"] == count


def test_an_emptied_cache_gives_memory_back():
    torch.empty(3 * MIB, device="fl:1")
    assert torch.fl.memory_reserved(1) >= 12 * MIB
    torch.fl.empty_cache()
    assert torch.fl.memory_reserved(1) == torch.fl.memory_allocated(1)
    assert torch.ones(3 * MIB, device="fl:1").sum().item() == 3 * MIB


@pytest.mark.parametrize("num_elements", [1, 13, 103, 1000, 65537, 3 * MIB + 1])
def test_at_most_an_eighth_of_a_block_is_unused(num_elements: int):
    before = torch.fl.memory_stats(0)
    tensor = torch.empty(num_elements, dtype=torch.uint8, device="fl:0")
    after = torch.fl.memory_stats(0)
    allocated = after["allocated_bytes"] - before["allocated_bytes"]
    assert after["requested_bytes"] - before["requested_bytes"] == num_elements
    assert num_elements <= allocated <= max(num_elements * 1.126, num_elements + 63)
    del tensor


@pytest.mark.parametrize(("index", "alignment"), [(0, 64), (3, 256)])
def test_addresses_are_aligned_as_the_device_wants(index: int, alignment: int):
    tensors = [torch.empty(size, device=f"fl:{index}") for size in (1, 7, 13, 103, 1023, 70001)]
    assert [tensor.data_ptr() % alignment for tensor in tensors] == [0] * len(tensors)


def test_the_limit_is_hard_and_nothing_is_lost_by_reaching_it():
    before = torch.fl.memory_allocated(1)
    with pytest.raises(
        torch.OutOfMemoryError, match=r"allocation on fl:1 = 65\.00 MiB; the limit"
    ) as e:
        torch.empty(65 * MIB // 4, device="fl:1")
    assert "limit 64.00 MiB" in str(e.value)
    assert torch.fl.memory_allocated(1) == before
    assert torch.fl.memory_stats(1)["num_ooms"] >= 1
    assert torch.ones(7, device="fl:1").sum().item() == 7


def test_temporaries_of_native_code_are_limited_too():
    part = torch.ones(5 * MIB // 4, device="fl:1")
    before = torch.fl.memory_allocated(1)
    with pytest.raises(torch.OutOfMemoryError, match="allocation on fl:1"):
        torch.cat([part] * 14)
    assert torch.fl.memory_allocated(1) == before


def test_an_absurd_size_is_out_of_memory():
    with pytest.raises(torch.OutOfMemoryError, match="no device has so much"):
        torch.empty(1 << 52, dtype=torch.uint8, device="fl:0")


def test_kept_memory_makes_room_before_the_limit_is_reached():
    torch.empty(40 * MIB // 4, device="fl:1")
    retries = torch.fl.memory_stats(1)["num_retries"]
    assert torch.ones(33 * MIB // 4, device="fl:1").sum().item() == 33 * MIB // 4
    assert torch.fl.memory_stats(1)["num_retries"] == retries + 1


def test_free_and_total_memory():
    tensor = torch.empty(MIB, device="fl:1")
    free, total = torch.fl.mem_get_info(1)
    assert total == 64 * MIB
    assert free == total - torch.fl.memory_allocated(1) <= total - tensor.nbytes
    with pytest.raises(RuntimeError, match="memory of fl:0 = without a limit; devices with"):
        torch.fl.mem_get_info(0)
    with pytest.raises(RuntimeError, match="memory information of fl:0 = unknown; the device has"):
        torch.accelerator.get_memory_info(0)
    assert torch.accelerator.get_memory_info(1)[1] == total


def test_statistics_are_those_of_torch_accelerator():
    tensor = torch.empty(103, device="fl:3")
    assert torch.accelerator.memory_allocated(3) == torch.fl.memory_allocated(3) >= tensor.nbytes
    assert torch.accelerator.memory_reserved(3) == torch.fl.memory_reserved(3)
    assert torch.accelerator.memory_stats(3)["requested_bytes.all.current"] >= tensor.nbytes
    torch.accelerator.empty_cache()
    torch.accelerator.reset_accumulated_memory_stats(3)
    assert torch.fl.max_memory_reserved(3) >= torch.fl.memory_reserved(3)
    assert "peak_allocated_bytes" in torch.fl.memory_summary(3)


def test_a_tensor_of_the_cpu_costs_the_devices_nothing():
    before = [torch.fl.memory_stats(index)["num_allocs"] for index in torch.fl.device_ids()]
    assert torch.ones(103).add(1).sum().item() == 206
    assert [torch.fl.memory_stats(index)["num_allocs"] for index in torch.fl.device_ids()] == before


def test_errors_in_native_code_lose_no_memory():
    left, right = torch.ones(2, 3, device="fl:1"), torch.ones(2, 3, device="fl:1")
    before = torch.fl.memory_allocated(1)
    for _ in range(20):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            torch.mm(left, right)
    assert torch.fl.memory_allocated(1) == before


def test_a_storage_is_resized_and_keeps_what_fits():
    tensor = torch.arange(4.0, device="fl:0")
    storage = tensor.untyped_storage()
    storage.resize_(4 * 100)
    assert tensor.tolist() == [0, 1, 2, 3]
    storage.resize_(0)
    storage.resize_(4 * 4)
    assert tensor.fill_(2).sum().item() == 8


def test_views_share_a_storage_and_a_resize_reaches_them():
    tensor = torch.arange(4.0, device="fl:0")
    view = tensor.view(2, 2)
    tensor.resize_(1000)
    assert tensor[:4].tolist() == [0, 1, 2, 3]
    assert view.tolist() == [[0, 1], [2, 3]]
    assert view.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()


def test_native_tensors_share_memory_with_those_they_are_made_of():
    tensor = torch.arange(6.0, device="fl:3").view(2, 3).t()
    native = fl_operators().to_native(tensor)
    assert native.device.type == "cpu"
    assert native.stride() == tensor.stride()
    native[0, 1] = 9
    assert tensor[0, 1].item() == 9
    back = fl_operators().from_native(native, 3)
    assert back.device == tensor.device
    assert back.data_ptr() == tensor.data_ptr()


def test_only_fl_tensors_have_native_ones_and_the_other_way_round():
    with pytest.raises(ValueError, match="tensor on cpu; a tensor of fl is allowed; it is native"):
        fl_operators().to_native(torch.ones(2))
    with pytest.raises(ValueError, match="tensor on fl:0 for fl:0; one on cpu is allowed; move it"):
        fl_operators().from_native(torch.ones(2, device="fl:0"), 0)


def test_pinned_memory_is_known():
    tensor = torch.ones(7).pin_memory()
    assert tensor.is_pinned()
    assert tensor[3:].is_pinned()
    assert not torch.ones(7).is_pinned()
    assert tensor.to("fl:1", non_blocking=True).sum().item() == 7
    assert torch.empty(0).pin_memory().numel() == 0
    with pytest.raises(RuntimeError, match=r"pin_memory = True on fl; only dense CPU tensors"):
        torch.empty(2, device="fl", pin_memory=True)

"""torch.fl and torch.accelerator: devices, streams, events."""

import pytest
import torch


def test_the_current_device_is_that_of_new_tensors():
    torch.fl.set_device(1)
    assert torch.fl.current_device() == torch.accelerator.current_device_index() == 1
    assert torch.empty(1, device="fl").device == torch.device("fl:1")
    torch.fl.set_device("fl:3")
    assert torch.empty(1, device="fl").device == torch.device("fl:3")
    torch.fl.set_device(-1)
    assert torch.fl.current_device() == 3


def test_a_device_is_current_inside_a_block():
    with torch.fl.device(1):
        assert torch.fl.current_device() == 1
        with torch.fl.device("fl:3"):
            assert torch.fl.current_device() == 3
        assert torch.fl.current_device() == 1
    with torch.accelerator.device_index(3):
        assert torch.fl.current_device() == 3
    assert torch.fl.current_device() == 0
    with torch.device("fl:1"):
        assert torch.ones(2).device == torch.device("fl:1")


@pytest.mark.parametrize("index", [2, 7])
def test_a_device_that_is_not_there_cannot_be_current(index: int):
    for choose in (torch.fl.set_device, torch.accelerator.set_device_index):
        with pytest.raises(
            IndexError, match=rf"device index = {index}; there are fl:0, fl:1, fl:3"
        ):
            choose(index)
    assert torch.fl.current_device() == 0
    with pytest.raises(IndexError, match=f"device index = {index}"):
        torch.fl.get_device_name(index)


def test_accelerator_is_fl():
    assert torch.accelerator.current_accelerator() == torch.device("fl")
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == torch.fl.device_count() == 4
    torch.accelerator.synchronize()
    torch.fl.synchronize("fl:3")


def test_names_and_properties():
    assert torch.fl.get_device_name() == "host"
    properties = torch.fl.get_device_properties(3)
    assert properties.name == "simulated"
    assert properties.is_simulated
    assert properties.total_memory == 64 << 20
    assert properties.native_device == "cpu"
    assert properties.uid == "sim:0"
    assert torch.fl.get_device_properties(1).total_memory == 64 << 20
    assert torch.fl.get_device_capability(1) == (0, 0)


def test_dtypes():
    assert torch.bfloat16 in torch.fl.get_amp_supported_dtype()
    assert torch.fl.is_bf16_supported()


def test_streams_are_per_device_and_thread():
    default = torch.fl.current_stream(1)
    assert torch.fl.default_stream(1) == default
    stream = torch.fl.Stream(1)
    assert isinstance(stream, torch.Stream)
    assert stream != default
    with torch.fl.stream(stream):
        assert torch.fl.current_stream(1) == stream
        assert torch.fl.current_stream(0) != stream
        torch.ones(3, device="fl:1").record_stream(stream)
    assert torch.fl.current_stream(1) == default
    with torch.fl.stream(None):
        assert torch.fl.current_stream(1) == default
    torch.fl.set_stream(stream)
    assert torch.fl.current_stream(1) == stream
    torch.fl.set_stream(default)
    torch.fl.set_stream(None)
    assert stream.query()
    stream.synchronize()
    stream.wait_stream(default)


def test_events_tell_the_time_between_them():
    start, end = torch.Event("fl:1", enable_timing=True), torch.Event("fl:1", enable_timing=True)
    start.record(torch.fl.current_stream(1))
    torch.randn(103, 103, device="fl:1").exp()
    end.record(torch.fl.current_stream(1))
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) > 0
    torch.fl.current_stream(1).wait_event(end)


def test_two_devices_hold_a_stream_each():
    streams = [torch.fl.Stream(index) for index in torch.fl.device_ids()]
    assert [stream.device_index for stream in streams] == [0, 1, 3]
    assert len({stream.stream_id for stream in streams}) == 3

"""HostFlag: snapshot, readiness and late reads."""

import pytest
import torch

from lightning_mp.amp import HostFlag, host_flag


class FakeEvent:
    """An event that the test fires, or that a wait fires."""

    def __init__(self) -> None:
        self.is_done = False
        self.num_waits = 0

    def query(self) -> bool:
        return self.is_done

    def synchronize(self) -> None:
        self.is_done = True
        self.num_waits += 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.tensor(True), True),
        (torch.tensor(False), False),
        (torch.tensor(1.0), True),
        (torch.tensor(0.0), False),
        (torch.tensor(float("nan")), True),
        (torch.zeros(1, dtype=torch.int32), False),
        (torch.ones((), dtype=torch.float16, requires_grad=True), True),
    ],
)
def test_value(value, expected):
    flag = HostFlag(value)
    assert flag.is_ready()
    assert flag.read() is expected
    assert flag.read() is expected
    assert flag.is_ready()


@pytest.mark.parametrize("before", [0.0, 1.0])
def test_the_tensor_may_be_reused(before):
    tensor = torch.tensor(before)
    flag = HostFlag(tensor)
    tensor.fill_(1.0 - before)
    assert flag.read() is bool(before)


def test_readiness_is_the_event_s_and_a_read_waits_once(monkeypatch):
    event = FakeEvent()
    monkeypatch.setattr(host_flag, "_start_copy", lambda flag: (flag.clone(), event))
    flag = HostFlag(torch.tensor(1.0))
    assert not flag.is_ready()
    assert event.num_waits == 0
    assert flag.read() is True
    assert flag.is_ready()
    assert flag.read() is True
    assert event.num_waits == 1


def test_an_accelerator_s_copy_is_pinned_and_recorded_on_its_own_stream(monkeypatch):
    calls = []
    empty = torch.empty

    class RecordedEvent(FakeEvent):
        def __init__(self, device: torch.device) -> None:
            super().__init__()
            calls.append(("event", device))

        def record(self, stream: str) -> None:
            calls.append(("record", stream))

    def pinned(*size, pin_memory=False, **kwargs):
        calls.append(("pinned", pin_memory))
        return empty(*size, **kwargs)

    # The CPU plays the accelerator: what a GPU does with these calls is the next test's business.
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: cpu)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch, "Event", RecordedEvent)
    monkeypatch.setattr(torch, "empty", pinned)
    flag = HostFlag(torch.tensor(1.0))
    assert calls == [("pinned", True), ("event", cpu), ("record", "stream of cpu")]
    assert not flag.is_ready()
    assert flag.read() is True


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_accelerator_flag_does_not_synchronise():
    tensor = torch.ones((), device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(200_000_000)
        flag = HostFlag(tensor)
        tensor.zero_()
        assert not flag.is_ready()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert flag.read() is True
    assert flag.is_ready()


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.zeros(2), r"flag has shape \(2,\) on cpu; one element .*reduce it"),
        (torch.zeros(0), r"flag has shape \(0,\)"),
        (torch.zeros((), device="meta"), r"on meta; .*a device that holds values"),
    ],
)
def test_bad_flags(tensor, message):
    with pytest.raises(ValueError, match=message):
        HostFlag(tensor)

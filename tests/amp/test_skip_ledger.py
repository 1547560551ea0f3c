"""The ledger's rule, and that it waits for no flag before it is asked."""

from typing import Any

import pytest
import torch

from lightning_mp.amp.host_flag import HostFlag
from lightning_mp.amp.skip_ledger import SkipLedger


class LateFlag:
    """A flag that has not arrived; counts who waits for it."""

    def __init__(self, value: bool) -> None:
        self.value, self.num_reads = value, 0

    def is_ready(self) -> bool:
        return False

    def read(self) -> bool:
        self.num_reads += 1
        return self.value


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        (["x"], [True]),
        (["."], [False]),
        ([""], [False]),
        (["x.x"], [False]),
        (["xxx"], [True]),
        (["x", ".", "x", ""], [True, False, True, False]),
        ([".", "xx", "x."], [False, True, False]),
    ],
)
def test_holds_if_every_attempt_was_skipped(
    rounds: list[str], expected: list[bool], is_late: bool
) -> None:
    ledger = SkipLedger()
    found = []
    for marks in rounds:
        for mark in marks:
            flag: Any = LateFlag(mark == "x")
            ledger.record(flag if is_late else HostFlag(torch.tensor(mark == "x")))
        found.append(ledger.holds())
    assert found == expected


def test_a_record_waits_for_nothing() -> None:
    ledger = SkipLedger()
    flags: list[Any] = [LateFlag(False) for _ in range(5)]
    for flag in flags:
        ledger.record(flag)
    assert [flag.num_reads for flag in flags] == [0] * 5
    assert not ledger.holds()
    # The first one decides.
    assert [flag.num_reads for flag in flags] == [1, 0, 0, 0, 0]

"""What an optimizer did since its learning-rate scheduler last moved."""

from lightning_mp.amp.host_flag import HostFlag

__all__ = ["SkipLedger"]


class SkipLedger:
    """Tell whether all steps since the last question were skipped.

    A scheduler that moves per step holds on a skipped step; one that moves per epoch holds only
    if the optimizer took no step in the whole epoch. Flags are read when they are ready, or when
    the question is asked.
    """

    def __init__(self) -> None:
        self._has_stepped = False
        self._has_attempts = False
        self._unread: list[HostFlag] = []

    def record(self, flag: HostFlag) -> None:
        """Note one attempt.

        Args:
            flag: True if the step was skipped.
        """
        self._has_attempts = True
        if self._has_stepped:
            return
        self._unread.append(flag)
        self._read(wait=False)

    def holds(self) -> bool:
        """Tell whether every attempt since the last call was skipped, and start anew.

        Returns:
            True if there was an attempt and none of them stepped.
        """
        self._read(wait=True)
        is_held = self._has_attempts and not self._has_stepped
        self._has_stepped = self._has_attempts = False
        self._unread.clear()
        return is_held

    def _read(self, *, wait: bool) -> None:
        while self._unread and not self._has_stepped and (wait or self._unread[0].is_ready()):
            self._has_stepped = not self._unread.pop(0).read()

"""The section ``fallback``: what an operator without a kernel of its device may do."""

from dataclasses import dataclass

from lightning_mp.fl.config.checks import check_boolean, check_operators
from lightning_mp.fl.config.setting_error import SettingError

__all__ = ["FallbackConfig"]


@dataclass(frozen=True, kw_only=True)
class FallbackConfig:
    """Say which operators may run on the CPU when their device has no kernel for them.

    Args:
        enable_cpu_fallback: Whether operators fall back to the CPU.
        enable_generic_kernel: Whether kernels registered for every device are used before that.
        deny: Operators that never fall back to the CPU, whatever ``enable_cpu_fallback`` is. A
            name without overload stands for all of them.
        allow: Operators that do, although ``enable_cpu_fallback`` is False.

    Raises:
        SettingError: A value is not allowed, or an operator is in both lists.

    Example:
        >>> FallbackConfig(deny=("aten::tril",)).permits_cpu("aten::tril.out")
        False
    """

    enable_cpu_fallback: bool = True
    enable_generic_kernel: bool = True
    deny: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_boolean("enable_cpu_fallback", self.enable_cpu_fallback)
        check_boolean("enable_generic_kernel", self.enable_generic_kernel)
        check_operators("deny", self.deny)
        check_operators("allow", self.allow)
        for place, name in enumerate(self.allow):
            if name in self.deny:
                raise SettingError(
                    f"allow[{place}] = {name!r}, which deny has too; allowed: an operator in one "
                    "of the two lists; remove it from the other",
                    f"allow[{place}]",
                )

    def permits_cpu(self, operator: str) -> bool:
        """Say whether an operator may fall back to the CPU.

        The list that names its overload decides before the list that names it without.

        Args:
            operator: ``"namespace::name"`` or ``"namespace::name.overload"``.

        Returns:
            True if it may.
        """
        for name in (operator, operator.partition(".")[0]):
            if name in self.deny:
                return False
            if name in self.allow:
                return True
        return self.enable_cpu_fallback

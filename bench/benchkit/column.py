"""Columns of the precision benchmark: a precision string and a form of AdamW."""

from dataclasses import dataclass

__all__ = ["DEFAULT_COLUMNS", "PRECISIONS", "SMOKE_COLUMNS", "Column", "parse_column"]

STOCK_PRECISIONS = ("32-true", "bf16-mixed", "bf16-true")
PRECISIONS = (*STOCK_PRECISIONS, "O0", "O1", "O1-bf16", "O2", "O2-bf16", "O3", "O3-bf16")

_FUSED_SUFFIX = "/fused"

# Stock precisions in both forms, because a user may take either; ours as a user would write them.
DEFAULT_COLUMNS = (
    *(name + suffix for name in STOCK_PRECISIONS for suffix in ("", _FUSED_SUFFIX)),
    *PRECISIONS[len(STOCK_PRECISIONS) :],
)
SMOKE_COLUMNS = ("32-true", "bf16-mixed", "O2-bf16")


@dataclass(frozen=True)
class Column:
    """Name what is measured: how a Trainer is configured.

    Attributes:
        precision: The Trainer's ``precision``.
        is_fused: Whether the optimizer is ``AdamW(fused=True)``; otherwise ``AdamW()`` as it comes.
    """

    precision: str
    is_fused: bool

    @property
    def name(self) -> str:
        """Name on the command line and in the table."""
        return self.precision + (_FUSED_SUFFIX if self.is_fused else "")

    @property
    def eps(self) -> float:
        """AdamW's eps: its default, but where the optimizer steps in fp16, which has no 1e-8."""
        return 1e-4 if self.precision == "O3" else 1e-8

    @property
    def bypasses_clip_check(self) -> bool:
        """Whether no user can run this column: Lightning refuses fused AdamW with clipping."""
        return self.is_fused and self.precision.endswith("-mixed")


def parse_column(name: str) -> Column:
    """Read the name of a column.

    Args:
        name: A precision, optionally followed by ``/fused``.

    Returns:
        The column.

    Raises:
        ValueError: If the precision is unknown.

    Example:
        >>> parse_column("bf16-mixed/fused")
        Column(precision='bf16-mixed', is_fused=True)
    """
    precision = name.removesuffix(_FUSED_SUFFIX)
    if precision not in PRECISIONS:
        raise ValueError(
            f"column = {name!r}; allowed are {', '.join(PRECISIONS)}, each with or without "
            f"{_FUSED_SUFFIX!r} at its end; choose among these"
        )
    return Column(precision, is_fused=name != precision)

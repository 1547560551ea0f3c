"""Markdown tables."""

from collections.abc import Sequence

__all__ = ["format_table"]


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table, first column to the left, the others to the right.

    Args:
        header: Names of the columns.
        rows: Cells of each row.

    Returns:
        Markdown, without a final newline.
    """
    rule = ["---", *("---:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))

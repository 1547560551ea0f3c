import pytest

from benchkit.column import DEFAULT_COLUMNS, PRECISIONS, Column, parse_column


@pytest.mark.parametrize("name", [*DEFAULT_COLUMNS, "O2-bf16/fused"])
def test_a_name_survives_parsing(name):
    assert parse_column(name).name == name


def test_every_precision_is_measured_by_default():
    assert {parse_column(name).precision for name in DEFAULT_COLUMNS} == set(PRECISIONS)


@pytest.mark.parametrize("name", ["O7", "bf16-mixed/foreach", "/fused", ""])
def test_an_unknown_column_is_refused(name):
    with pytest.raises(ValueError, match="allowed are 32-true, bf16-mixed"):
        parse_column(name)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (Column("bf16-mixed", is_fused=True), True),
        (Column("bf16-mixed", is_fused=False), False),
        (Column("bf16-true", is_fused=True), False),
        (Column("O2", is_fused=True), False),
    ],
)
def test_only_fused_mixed_precision_bypasses_the_check(column, expected):
    assert column.bypasses_clip_check is expected

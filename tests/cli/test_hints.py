import pytest

from lightning_mp.cli.hints import with_allowed_arguments

CLIP = "lightning_mp.callbacks.MasterGradClip"


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        (f"class_path '{CLIP}':\n  Option 'max_nrm' is not accepted", "did you mean 'max_norm'?"),
        (f"class_path '{CLIP}':\n  Key 'qqq' is not expected", "max_norm, clip_value, norm_type"),
        (f"class_path '{CLIP}': Option 'qqq' is not accepted", "MasterGradClip takes max_norm"),
    ],
)
def test_unknown_argument_of_a_class(message, hint):
    hinted = with_allowed_arguments(message)
    assert hinted.startswith(message)
    assert hint in hinted.removeprefix(message)


@pytest.mark.parametrize(
    "message",
    [
        "Key 'trainr' is not expected",
        "class_path 'no.such.Class': Option 'x' is not accepted",
        "class_path 'math.pi': Option 'x' is not accepted",
    ],
)
def test_other_errors_stay_as_they_are(message):
    assert with_allowed_arguments(message) == message


def test_two_classes():
    message = "".join(
        f"class_path 'lightning_mp.callbacks.{name}': Option 'qqq' is not accepted\n"
        for name in ("OverflowLogger", "OverflowLogger", "BatchSizeWarmup")
    )
    lines = with_allowed_arguments(message).removeprefix(message).strip().splitlines()
    assert [line.partition(" takes ")[0] for line in lines] == ["OverflowLogger", "BatchSizeWarmup"]

import subprocess
import sys

import pytest

import lightning_mp

BLOCK_LIGHTNING = "import sys\nsys.modules['lightning'] = sys.modules['pytorch_lightning'] = None\n"


def run_python(code):
    return subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )


def test_public_names_are_there():
    from lightning_mp.precision import AmpPrecision
    from lightning_mp.trainer import Trainer

    assert lightning_mp.AmpPrecision is AmpPrecision
    assert lightning_mp.Trainer is Trainer
    assert lightning_mp.callbacks.__name__ == "lightning_mp.callbacks"
    assert lightning_mp.amp.__name__ == "lightning_mp.amp"
    assert all(hasattr(lightning_mp, name) for name in lightning_mp.__all__)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = lightning_mp.nonsense


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        "import lightning_mp.callbacks",
        "import lightning_mp.amp",
        "import lightning_mp.optim",
        "import lightning_mp.cli",
    ],
)
def test_any_module_may_be_imported_first(first):
    run = run_python(f"{first}\nimport lightning_mp\nprint(lightning_mp.callbacks.__name__)")
    assert (run.returncode, run.stdout.strip()) == (0, "lightning_mp.callbacks"), run.stderr


@pytest.mark.slow
def test_amp_and_optim_work_without_lightning():
    run = run_python(
        f"{BLOCK_LIGHTNING}import lightning_mp.amp, lightning_mp.optim\n"
        "print(lightning_mp.__version__, hasattr(lightning_mp, 'nonsense'))"
    )
    assert (run.returncode, run.stdout.split()) == (0, [lightning_mp.__version__, "False"]), (
        run.stderr
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    ["lightning_mp.Trainer", "from lightning_mp import AmpPrecision", "lightning_mp.install()"],
)
def test_lightning_names_say_that_it_is_missing(code):
    run = run_python(f"{BLOCK_LIGHTNING}import lightning_mp\n{code}")
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("ModuleNotFoundError: lightning_mp.")
    assert "needs the package lightning, which is not installed" in run.stderr

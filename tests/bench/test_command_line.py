import importlib

import pytest
from support.kernels import requires_kernels

from lightning_mp.kernels.library import NativeLibrary

SCRIPTS = ("precision", "function_casts", "fused_step", "norm_in_cache", "subnormals")
OF_KERNELS = ("fused_step", "norm_in_cache", "subnormals")


def refusal(script, arguments, capsys):
    with pytest.raises(SystemExit):
        importlib.import_module(script).main(arguments)
    return capsys.readouterr().err


@requires_kernels
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "'0' is not allowed; give a whole number above 0"),
        (["--rounds", "many"], "'many' is not allowed; give a whole number above 0"),
        (["--output", "absent/report.md"], "make absent first"),
    ],
)
def test_wrong_arguments_end_before_anything_runs(script, arguments, message, capsys):
    assert message in refusal(script, arguments, capsys)


@pytest.mark.parametrize("script", SCRIPTS)
def test_other_systems_are_refused(script, monkeypatch, capsys):
    monkeypatch.setattr("sys.platform", "darwin")
    assert "platform = darwin; allowed: linux" in refusal(script, ["--smoke"], capsys)


@pytest.mark.parametrize("script", OF_KERNELS)
def test_references_are_not_timed(script, monkeypatch, capsys):
    absent = NativeLibrary(False, "not built")
    monkeypatch.setattr("benchkit.command_line.load_kernels", lambda: absent)
    error = refusal(script, ["--smoke"], capsys)
    assert "kernels = reference (torch): not built; only compiled ones are timed" in error

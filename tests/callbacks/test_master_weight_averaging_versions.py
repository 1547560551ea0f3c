"""Before Lightning 2.6 the callback says what it needs; everything else imports as ever."""

import lightning as L
import pytest

from lightning_mp.callbacks import MasterWeightAveraging, master_weight_averaging

HAS_STOCK = hasattr(L.pytorch.callbacks, "WeightAveraging")


# The real thing is there in the environment with Lightning 2.4.
@pytest.mark.parametrize("is_simulated", [True] if HAS_STOCK else [True, False])
def test_old_versions_are_refused(monkeypatch, is_simulated):
    if is_simulated:
        monkeypatch.setattr(master_weight_averaging, "WeightAveraging", L.Callback)
        monkeypatch.setattr(master_weight_averaging, "LIGHTNING_VERSION", "2.4.0")
    with pytest.raises(RuntimeError, match=r"Lightning = 2\.\d\.\d; .* Lightning 2\.6 or later"):
        MasterWeightAveraging()

"""What tests of loss scalers record, and how they look at one."""

import torch

from lightning_mp.amp import LossScaler

INF, OK = torch.tensor(1.0), torch.tensor(0.0)


def ratio_of(scaler: LossScaler) -> float:
    ratio = scaler.update()
    assert ratio is not None
    return ratio.item()


def snapshot(scaler: LossScaler) -> dict[str, object]:
    return {**scaler.state_dict(), "has_pending": scaler.has_pending}

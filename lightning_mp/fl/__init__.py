"""One device type over every backend that torch has.

Importing this package finds no device and changes nothing in torch. ``activate()`` does, once per
process: from then on ``torch.device("fl:0")``, ``torch.fl`` and ``tensor.fl()`` exist.
"""

from lightning_mp.fl.activation import activate, active_specs, device, is_active
from lightning_mp.fl.device_spec import DeviceSpec

__all__ = ["DeviceSpec", "activate", "active_specs", "device", "is_active"]

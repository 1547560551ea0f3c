"""One device type over every backend that torch has.

Importing this package finds no device and changes nothing in torch.
"""

from lightning_mp.fl.device_spec import DeviceSpec

__all__ = ["DeviceSpec"]

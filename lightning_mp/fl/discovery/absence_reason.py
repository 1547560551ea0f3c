"""Why a device is not used."""

from enum import Enum

__all__ = ["AbsenceReason"]


class AbsenceReason(str, Enum):
    """Name what keeps a device from being used, from the hardware up to the configuration."""

    NO_DEVICE = "no device"
    NO_DRIVER = "no driver"
    NO_DEVICE_NODE = "no device node"
    NO_PERMISSION = "no permission"
    NOT_IN_THIS_TORCH = "card present, this torch cannot drive it"
    HIDDEN = "hidden by the environment"
    NOT_ANSWERING = "does not answer"
    QUERY_FAILED = "query failed"
    NOT_CONFIGURED = "not in the config"
    TOO_FEW = "fewer than the config names"
    NO_ID = "no logical id left"
    NOT_ALLOWED_HERE = "not open to this process"

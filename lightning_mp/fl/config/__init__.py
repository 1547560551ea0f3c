"""Configuration of fl: typed records, and the strict reader of their YAML file."""

from lightning_mp.fl.config.cpu_config import CpuConfig
from lightning_mp.fl.config.device_config import DeviceConfig
from lightning_mp.fl.config.fallback_config import FallbackConfig
from lightning_mp.fl.config.files import CONFIG_VARIABLE, find_config, load_config, save_config
from lightning_mp.fl.config.fl_config import FlConfig
from lightning_mp.fl.config.logging_config import LoggingConfig
from lightning_mp.fl.config.setting_error import SettingError
from lightning_mp.fl.config.sim_config import SimConfig

__all__ = [
    "CONFIG_VARIABLE",
    "CpuConfig",
    "DeviceConfig",
    "FallbackConfig",
    "FlConfig",
    "LoggingConfig",
    "SettingError",
    "SimConfig",
    "find_config",
    "load_config",
    "save_config",
]

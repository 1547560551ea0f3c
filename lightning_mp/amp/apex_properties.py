"""What an opt level was resolved to, under the names of Apex."""

from typing import Any

from lightning_mp.amp.opt_levels import OptLevelProperties

__all__ = ["ApexProperties"]


class ApexProperties:
    """Show resolved properties as ``amp._amp_state.opt_properties`` did.

    Args:
        properties: The resolved properties; ``None`` if mixed precision is off.
    """

    def __init__(self, properties: OptLevelProperties | None) -> None:
        self.enabled = properties is not None
        self._properties = properties

    @property
    def options(self) -> dict[str, Any]:
        """All properties by name."""
        names = (
            "opt_level",
            "cast_model_type",
            "patch_torch_functions",
            "keep_batchnorm_fp32",
            "master_weights",
            "loss_scale",
        )
        return {"enabled": self.enabled, **{name: getattr(self, name) for name in names}}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in OptLevelProperties.__dataclass_fields__:
            raise AttributeError(f"opt_properties has no {name!r}; see opt_properties.options")
        off = {"loss_scale": 1.0, "patch_torch_functions": False}
        return off.get(name) if self._properties is None else getattr(self._properties, name)

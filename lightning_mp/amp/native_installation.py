"""What native casts change in the process, in one place that can take it back.

Kernels at free Autocast slots, the tag that keeps compiled code of other policies out of the disk
cache, and a hook that drops autocast's copies of weights after each optimizer step.
"""

import hashlib
import sys
from types import ModuleType

import torch
import torch.compiler.config as compiler_config
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.checkpoint import DefaultDeviceType
from torch.utils.hooks import RemovableHandle

from lightning_mp.amp.dispatcher_ops import dispatcher_ops
from lightning_mp.amp.native_library import load_native_library
from lightning_mp.amp.op_lists import Policy

__all__ = ["INSTALLATION", "NativeInstallation", "drop_weight_casts"]

_TAG = "lightning_mp._O1="


class NativeInstallation:
    """Owns the process-wide side of native casts: one object, :data:`INSTALLATION`, per process.

    Nothing happens before the first :meth:`ensure`. Code that runs outside native casts computes
    the same bits before and after.
    """

    def __init__(self) -> None:
        self._carriers: dict[str, str] = {}
        self._user_policies: dict[tuple[str, str], Policy] = {}
        self._tag_suffix = ""
        self._hook: RemovableHandle | None = None
        self._has_set_default_device = False

    @property
    def carriers(self) -> dict[str, str]:
        """The device type that carries the mark of O1, by the device type with kernels."""
        return self._carriers

    def ensure(self, device_type: str) -> str:
        """Install what one device type needs, unless it is.

        Args:
            device_type: Type of the device that casts are for, with kernels in the library.

        Returns:
            The device type whose switched off autocast carries the mark.
        """
        if device_type not in self._carriers:
            library = _library()
            carrier = self._find_carrier(device_type)
            library.use_carrier(_dispatch_name(device_type), carrier)
            for op in dispatcher_ops():
                library.add(op.name, op.overload, op.policy.value, _dispatch_name(device_type))
            for (name, overload), policy in self._user_policies.items():
                library.add(name, overload, policy.value, _dispatch_name(device_type))
            if self._hook is None:
                self._hook = register_optimizer_step_post_hook(drop_weight_casts)
            self._carriers[device_type] = carrier
            self._write_tag()
        return self._carriers[device_type]

    def register(self, op: str, policy: Policy) -> dict[str, str]:
        """Give an operator, also one of the user's own, a policy; now and on later devices.

        Args:
            op: Qualified name, as ``"aten::sin"`` or ``"mylib::scan"``: all its overloads that do
                not write into a given tensor; or with one overload, as ``"aten::sin.default"``.
            policy: Its policy.

        Returns:
            For each device type in use, ``"ours"``; or ``"taken"`` if an overload is cast by the
            device's own autocast and keeps that treatment.

        Raises:
            ValueError: If there is no such operator.
        """
        overloads = _overloads(op)
        if not overloads:
            raise ValueError(
                f"op = {op!r}; allowed: a registered operator as 'namespace::name'; "
                "import the library that defines it first"
            )
        self._user_policies.update(dict.fromkeys(overloads, policy))
        outcome = {}
        for device_type in self._carriers:
            owners = {
                _library().add(name, overload, policy.value, _dispatch_name(device_type))
                for name, overload in overloads
            }
            outcome[device_type] = "taken" if "taken" in owners else "ours"
        if self._carriers:
            self._write_tag()
            if "torch._dynamo" in sys.modules:
                # Guards do not see the table, so code compiled before would keep the old policy.
                torch.compiler.reset()
        return outcome

    def uninstall(self) -> None:
        """Take everything back: kernels, tag, hook and checkpointing's default device type.

        Call it only where no graph of a forward under native casts is waiting for its backward.
        """
        for device_type in self._carriers:
            _library().remove(_dispatch_name(device_type))
        self._carriers.clear()
        self._user_policies.clear()
        if self._tag_suffix:
            compiler_config.cache_key_tag = self._user_tag()
            self._tag_suffix = ""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if self._has_set_default_device:
            DefaultDeviceType.set_device_type("cpu")
            self._has_set_default_device = False

    def _find_carrier(self, device_type: str) -> str:
        """Find a device type whose autocast state checkpointing restores besides the one in use.

        That is the CPU's, always, and that of the inferred device: with nothing but CPU tensors,
        the default one. It must not be the CPU then. The change stays, since a checkpointed
        forward of before refers to the default until its backward.
        """
        if device_type != "cpu":
            return "cpu"
        if DefaultDeviceType.get_device_type() == "cpu":
            DefaultDeviceType.set_device_type("cuda")
            self._has_set_default_device = True
        return DefaultDeviceType.get_device_type()

    def _write_tag(self) -> None:
        """Put a digest of library and table behind the user's own tag."""
        user_tag = self._user_tag()
        library = _library()
        content = repr((library.SOURCE_DIGEST, library.table()))
        self._tag_suffix = f";{_TAG}{hashlib.sha256(content.encode()).hexdigest()[:16]}"
        compiler_config.cache_key_tag = user_tag + self._tag_suffix

    def _user_tag(self) -> str:
        return compiler_config.cache_key_tag.removesuffix(self._tag_suffix)


INSTALLATION = NativeInstallation()


def _library() -> ModuleType:
    library, reason = load_native_library()
    if library is None:
        raise RuntimeError(f"native casts = not available; {reason}")
    return library


def _dispatch_name(device_type: str) -> str:
    """Return the name by which the library knows a device type."""
    return device_type if device_type in ("cpu", "cuda") else "privateuse1"


def _overloads(op: str) -> list[tuple[str, str]]:
    name, _, wanted = op.partition(".")
    found = []
    for qualified in torch._C._dispatch_get_all_op_names():
        candidate, _, overload = qualified.partition(".")
        if candidate == name and wanted in ("", overload or "default"):
            schema = torch._C._get_schema(name, overload)
            if wanted or not any(argument.is_out for argument in schema.arguments):
                found.append((name, overload))
    return sorted(found)


def drop_weight_casts(*_: object) -> None:
    """Drop the half copies that autocast keeps of weights; a step has just changed the weights."""
    torch.clear_autocast_cache()

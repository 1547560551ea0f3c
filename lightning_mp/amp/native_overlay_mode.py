"""What the kernels of O1 leave to Python: users' policies of torch functions, and lifted bans."""

from collections.abc import Callable, Iterable
from typing import Any

from torch.nn import functional as F

from lightning_mp.amp.function_cast_mode import FunctionCastMode
from lightning_mp.amp.native_casts import native_disabled, native_is_active
from lightning_mp.amp.op_lists import Policy
from lightning_mp.amp.policy_table import POLICIES
from lightning_mp.amp.torch_calls import Args, Kwargs

__all__ = ["NativeOverlayMode"]


class NativeOverlayMode(FunctionCastMode):
    """Run those torch calls by their policies that native casts do not treat so.

    It is entered inside a region of native casts, and only if there is something for it to do: a
    function mode costs about a microsecond per torch call.
    """

    def __torch_function__(
        self,
        func: Callable,
        types: Iterable[type],
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> Any:
        """Run one torch call, by its policy if it has one of the user's."""
        kwargs = kwargs or {}
        policy = POLICIES.user.get(func)
        if policy is None and self.allow_banned and func is F.binary_cross_entropy:
            # Else it is left to the kernels, as where no overlay is on.
            policy = Policy.BANNED
        if policy is None or not native_is_active():
            return self.run_unlisted(func, types, args, kwargs)
        args, kwargs = self.cast(policy, func, args, kwargs)
        # Autocast would cast once more, by the policy that this one is in place of.
        with native_disabled():
            return func(*args, **kwargs)

"""Which torch function has which policy at present: O1's table, and the user's words over it."""

from collections.abc import Callable, Mapping

from lightning_mp.amp.op_lists import Policy, policies_by_function

__all__ = ["POLICIES", "PolicyTable"]


class PolicyTable:
    """The policies that function modes read, and the one place where users change them.

    Example:
        >>> import torch
        >>> table = PolicyTable()
        >>> table.set_user_policy(torch.sin, Policy.FP32)
        >>> table.effective[torch.sin]
        <Policy.FP32: 'fp32'>
        >>> table.drop_user_policy(torch.sin)
        >>> torch.sin in table.effective
        False
    """

    def __init__(self) -> None:
        self._built_in = policies_by_function()
        self._user: dict[Callable, Policy] = {}
        # One dict, so that a mode looks a function up once.
        self._effective = dict(self._built_in)

    @property
    def effective(self) -> Mapping[Callable, Policy]:
        """The policy of every function that has one."""
        return self._effective

    @property
    def user(self) -> Mapping[Callable, Policy]:
        """The policies that users have set."""
        return self._user

    def set_user_policy(self, function: Callable, policy: Policy) -> None:
        """Set the policy of a torch function, in place of the table's or an earlier one.

        Args:
            function: A function that torch hands to function modes.
            policy: Its new policy.
        """
        self._user[function] = self._effective[function] = policy

    def drop_user_policy(self, function: Callable) -> None:
        """Give a function its policy of the table back.

        Args:
            function: A function; one without a user's policy is left as it is.
        """
        self._user.pop(function, None)
        if function in self._built_in:
            self._effective[function] = self._built_in[function]
        else:
            self._effective.pop(function, None)


POLICIES = PolicyTable()

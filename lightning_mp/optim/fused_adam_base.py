"""What FusedAdam and FusedAdamW share: the dtype of their moments."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from typing_extensions import override

from lightning_mp.kernels.adam_group import ROUNDING_SEED, STATE_DTYPE
from lightning_mp.optim.fused_optimizer import FusedOptimizer

__all__ = ["FusedAdamBase"]

_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"fp32": torch.float32, "bf16": torch.bfloat16}
)
_NUM_SEEDS = 2**63


class FusedAdamBase(FusedOptimizer):
    """Keep moments in float32, or in bfloat16 with stochastic rounding, group by group.

    A group with bfloat16 moments has two entries more than torch's: ``state_dtype``, and
    ``rounding_seed``, which is 0 unless the group brought one. With it, the step and the place of
    an element say how the element is rounded. No generator is asked: a run that is resumed goes on
    bit for bit, and processes that train copies of one model round alike, however each is seeded.
    """

    chooses_state_dtype = True

    def _set_state_dtype(self, state_dtype: Any) -> None:
        """Give all groups, and those to come, a dtype of moments; ends a constructor.

        Args:
            state_dtype: float32 or bfloat16, or ``"fp32"`` or ``"bf16"``.

        Raises:
            ValueError: It is something else.
        """
        dtype = _parse_dtype(state_dtype)
        if dtype == torch.bfloat16:
            self.defaults[STATE_DTYPE] = dtype
            for group in self.param_groups:
                group.setdefault(STATE_DTYPE, dtype)
                _complete(group)

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        try:
            _complete(self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()
            raise

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this class or of its counterpart in ``torch.optim``.

        Moments take the dtype that this optimizer's groups have: from float32 to bfloat16 they are
        rounded to nearest, once. The seed of the roundings is that of the state, if it has one.

        Args:
            state_dict: What ``state_dict()`` returned.

        Raises:
            ValueError: It is that of a variant which is not supported, or of other groups; nothing
                is changed then.
        """
        groups = _with_own_dtypes(state_dict["param_groups"], self.param_groups)
        super().load_state_dict({**state_dict, "param_groups": groups})


def _complete(group: dict[str, Any]) -> None:
    """Bring the entries of a group that it needs for its moments into their form."""
    if STATE_DTYPE not in group:
        return
    group[STATE_DTYPE] = _parse_dtype(group[STATE_DTYPE])
    if group[STATE_DTYPE] == torch.bfloat16:
        seed = group.setdefault(ROUNDING_SEED, 0)
        if type(seed) is not int or not 0 <= seed < _NUM_SEEDS:
            raise ValueError(
                f"{ROUNDING_SEED} = {seed!r}; allowed is an integer from 0 to 2**63 - 1; leave it "
                "out for 0"
            )


def _with_own_dtypes(
    saved: Sequence[dict[str, Any]], own: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    # What is saved beyond the own groups is for torch to refuse.
    groups = [dict(group) for group in saved]
    for group, mine in zip(groups, own, strict=False):
        seed = group.pop(ROUNDING_SEED, mine.get(ROUNDING_SEED))
        group.pop(STATE_DTYPE, None)
        if STATE_DTYPE in mine:
            group[STATE_DTYPE] = mine[STATE_DTYPE]
        if ROUNDING_SEED in mine:
            group[ROUNDING_SEED] = seed
    return groups


def _parse_dtype(state_dtype: Any) -> torch.dtype:
    dtype = _DTYPES.get(state_dtype) if isinstance(state_dtype, str) else state_dtype
    if not isinstance(dtype, torch.dtype) or dtype not in _DTYPES.values():
        raise ValueError(
            f"{STATE_DTYPE} = {state_dtype!r}; allowed are torch.float32 and torch.bfloat16, or "
            f"{' and '.join(map(repr, _DTYPES))}; choose torch.float32 where bfloat16 is too coarse"
        )
    return dtype

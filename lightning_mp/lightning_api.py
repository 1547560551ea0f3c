"""Every name of Lightning that this suite uses, from the package that is in use.

Modules take them from here, so that one source serves ``lightning`` and ``pytorch_lightning``; see
:mod:`lightning_mp.lightning_package` for the choice. Only the command line imports more, where it
needs it.
"""

from typing import TYPE_CHECKING

from lightning_mp.lightning_package import PACKAGE

__all__ = [
    "LIGHTNING_VERSION",
    "PLUGIN_INPUT",
    "PRECISION_INPUT",
    "BatchSizeFinder",
    "Callback",
    "CheckpointIO",
    "DDPStrategy",
    "DeepSpeedStrategy",
    "FSDPStrategy",
    "Fabric",
    "FabricPrecision",
    "GradClipAlgorithmType",
    "GradientAccumulationScheduler",
    "LightningDataModule",
    "LightningModule",
    "LightningOptimizer",
    "MixedPrecision",
    "ModelCheckpoint",
    "ModelParallelStrategy",
    "OptimizerLRSchedulerConfig",
    "Precision",
    "SingleDeviceStrategy",
    "SingleDeviceXLAStrategy",
    "StrategyRegistry",
    "TQDMProgressBar",
    "TorchCheckpointIO",
    "Trainer",
    "WeightAveraging",
    "XLAStrategy",
    "defaults_from_env_vars",
    "do_nothing_closure",
    "fabric_module",
    "fabric_strategies",
    "fabric_wrappers",
    "is_overridden",
    "rank_zero_info",
    "rank_zero_only",
    "rank_zero_warn",
    "trainer_module",
]

if TYPE_CHECKING or PACKAGE != "pytorch_lightning":
    from lightning import __version__ as LIGHTNING_VERSION
    from lightning.fabric import Fabric
    from lightning.fabric import fabric as fabric_module
    from lightning.fabric import strategies as fabric_strategies
    from lightning.fabric import wrappers as fabric_wrappers
    from lightning.fabric.plugins import CheckpointIO
    from lightning.fabric.plugins import Precision as FabricPrecision
    from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
    from lightning.fabric.plugins.precision.precision import _PRECISION_INPUT as PRECISION_INPUT
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
    from lightning.pytorch import callbacks as _callbacks
    from lightning.pytorch.callbacks import (
        BatchSizeFinder,
        GradientAccumulationScheduler,
        ModelCheckpoint,
        TQDMProgressBar,
    )
    from lightning.pytorch.core.optimizer import LightningOptimizer, do_nothing_closure
    from lightning.pytorch.plugins import _PLUGIN_INPUT as PLUGIN_INPUT
    from lightning.pytorch.plugins.precision import MixedPrecision, Precision
    from lightning.pytorch.strategies import (
        DDPStrategy,
        DeepSpeedStrategy,
        FSDPStrategy,
        ModelParallelStrategy,
        SingleDeviceStrategy,
        StrategyRegistry,
    )
    from lightning.pytorch.strategies.single_xla import SingleDeviceXLAStrategy
    from lightning.pytorch.strategies.xla import XLAStrategy
    from lightning.pytorch.trainer import trainer as trainer_module
    from lightning.pytorch.utilities import GradClipAlgorithmType
    from lightning.pytorch.utilities.argparse import (
        _defaults_from_env_vars as defaults_from_env_vars,
    )
    from lightning.pytorch.utilities.model_helpers import is_overridden
    from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_only, rank_zero_warn
    from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
else:
    from lightning_fabric import Fabric
    from lightning_fabric import fabric as fabric_module
    from lightning_fabric import strategies as fabric_strategies
    from lightning_fabric import wrappers as fabric_wrappers
    from lightning_fabric.plugins import CheckpointIO
    from lightning_fabric.plugins import Precision as FabricPrecision
    from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
    from lightning_fabric.plugins.precision.precision import _PRECISION_INPUT as PRECISION_INPUT
    from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer
    from pytorch_lightning import __version__ as LIGHTNING_VERSION
    from pytorch_lightning import callbacks as _callbacks
    from pytorch_lightning.callbacks import (
        BatchSizeFinder,
        GradientAccumulationScheduler,
        ModelCheckpoint,
        TQDMProgressBar,
    )
    from pytorch_lightning.core.optimizer import LightningOptimizer, do_nothing_closure
    from pytorch_lightning.plugins import _PLUGIN_INPUT as PLUGIN_INPUT
    from pytorch_lightning.plugins.precision import MixedPrecision, Precision
    from pytorch_lightning.strategies import (
        DDPStrategy,
        DeepSpeedStrategy,
        FSDPStrategy,
        ModelParallelStrategy,
        SingleDeviceStrategy,
        StrategyRegistry,
    )
    from pytorch_lightning.strategies.single_xla import SingleDeviceXLAStrategy
    from pytorch_lightning.strategies.xla import XLAStrategy
    from pytorch_lightning.trainer import trainer as trainer_module
    from pytorch_lightning.utilities import GradClipAlgorithmType
    from pytorch_lightning.utilities.argparse import (
        _defaults_from_env_vars as defaults_from_env_vars,
    )
    from pytorch_lightning.utilities.model_helpers import is_overridden
    from pytorch_lightning.utilities.rank_zero import rank_zero_info, rank_zero_only, rank_zero_warn
    from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import WeightAveraging
else:
    # From Lightning 2.6 on; before, MasterWeightAveraging says what it needs.
    WeightAveraging = getattr(_callbacks, "WeightAveraging", Callback)

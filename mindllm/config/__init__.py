"""Compose YAML and ``key=value`` overrides into a checked, typed configuration. No other room parses config."""

from mindllm.config.actor import ActorConfig
from mindllm.config.roles import RefConfig, RoleConfig, TrainedRoleConfig
from mindllm.config.schema import RunConfig
from mindllm.config.sections import AlgorithmConfig, KLControl, ResourcePool, RewardConfig, RewardFunction
from mindllm.config.training import TrainingConfig

__all__ = [
    "ActorConfig",
    "AlgorithmConfig",
    "KLControl",
    "RefConfig",
    "ResourcePool",
    "RewardConfig",
    "RewardFunction",
    "RoleConfig",
    "RunConfig",
    "TrainedRoleConfig",
    "TrainingConfig",
]

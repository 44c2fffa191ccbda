"""Compose YAML and ``key=value`` overrides into a checked, typed configuration. No other room parses config."""

from mindllm.config.actor import ActorConfig
from mindllm.config.architecture import architecture_mismatches
from mindllm.config.build import build_config
from mindllm.config.compose import compose_config
from mindllm.config.dump import resolved_sections, resolved_yaml
from mindllm.config.pool import PoolRole, ResourcePool
from mindllm.config.roles import CriticConfig, RefConfig, RewardModelConfig, RoleConfig, TrainedRoleConfig
from mindllm.config.schema import RunConfig
from mindllm.config.sections import AlgorithmConfig, KLControl, RewardConfig, RewardFunction
from mindllm.config.training import TrainingConfig

__all__ = [
    "ActorConfig",
    "AlgorithmConfig",
    "CriticConfig",
    "KLControl",
    "PoolRole",
    "RefConfig",
    "ResourcePool",
    "RewardConfig",
    "RewardFunction",
    "RewardModelConfig",
    "RoleConfig",
    "RunConfig",
    "TrainedRoleConfig",
    "TrainingConfig",
    "architecture_mismatches",
    "build_config",
    "compose_config",
    "resolved_sections",
    "resolved_yaml",
]

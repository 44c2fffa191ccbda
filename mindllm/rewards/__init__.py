"""Rule rewards: built-in and user functions, checked before a run and scored in processes of their own."""

from mindllm.rewards.checks import RewardSpec, check_rewards, describe_lists, describe_tags, solution_column
from mindllm.rewards.registry import BUILTINS, reward
from mindllm.rewards.runner import RewardError, RewardItem, RewardResult, RewardRunner

__all__ = [
    "BUILTINS",
    "RewardError",
    "RewardItem",
    "RewardResult",
    "RewardRunner",
    "RewardSpec",
    "check_rewards",
    "describe_lists",
    "describe_tags",
    "reward",
    "solution_column",
]

"""Generation: sampling responses from the sharded model that is being trained."""

from mindllm.rollout.engine import GenerationEngine, GenerationStats
from mindllm.rollout.sampler import SamplingParams

__all__ = ["GenerationEngine", "GenerationStats", "SamplingParams"]

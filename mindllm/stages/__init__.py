"""One file per stage; a stage reads like the algorithm it is named after."""

from collections.abc import Callable
from importlib import import_module

from mindllm.config import RunConfig

STAGES = {
    "sft": "mindllm.stages.sft",
    "orm": "mindllm.stages.orm",
    "ray_grpo": "mindllm.stages.grpo",
    "ray_ppo": "mindllm.stages.ppo",
}
"""Stage name -> module with a ``run(config)`` function."""


def run(config: RunConfig) -> int:
    """Run the configured stage to its end and return the exit status, 0.

    Raises:
        UserError: something the user can fix. WorkerError: a rank failed.
    """
    stage: Callable[[RunConfig], None] = import_module(STAGES[config.training.stage]).run
    stage(config)
    return 0


def check_resume(config: RunConfig) -> list[str]:
    """Check that a run which was started before can go on; see ``mindllm.stages.resume.check_resume``."""
    check: Callable[[RunConfig], list[str]] = import_module("mindllm.stages.resume").check_resume
    return check(config)

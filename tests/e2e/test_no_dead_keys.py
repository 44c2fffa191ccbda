"""Every key of a configuration is read: recorded in runs, outside the code that builds configurations.

A run of each stage in this process, preceded by its checks as every run is, reads nearly all. What is left is for runs
with several processes; for those the driver starts groups of stand-ins, which is where it reads such keys.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace

import pytest

from mindllm.checkpoint import latest_iteration_dir
from mindllm.config import (
    ActorConfig,
    AlgorithmConfig,
    CriticConfig,
    KLControl,
    RefConfig,
    ResourcePool,
    RewardConfig,
    RewardFunction,
    RewardModelConfig,
    TrainingConfig,
    compose_config,
)
from mindllm.config.base import Section
from mindllm.workers.cluster import Cluster
from tests.e2e.runs import ACTOR, Workspace, post_train

Key = tuple[str, str]
BUILDING = {f"mindllm.config.{module}" for module in ("build", "compose", "dump")}
SECTIONS = (
    *(TrainingConfig, ActorConfig, RefConfig, CriticConfig, RewardModelConfig),
    *(AlgorithmConfig, KLControl, RewardConfig, RewardFunction, ResourcePool),
)
READ_WHILE_BUILDING = {
    "model": "picks a model file, whose keys are in model_keys",
    "tokenizer_type": "has one value",
    "num_gpus_for_train": "is a part of resource_pool.actor_rollout by another name",
    "clip_ratio": "is the default of clip_ratio_low and clip_ratio_high",
}


def is_in_use(frame: FrameType | None) -> bool:
    """Whether a read is for the run: the outermost caller within ``mindllm.config`` is not building or printing it."""
    outermost = ""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("mindllm.config"):
        outermost, frame = frame.f_globals["__name__"], frame.f_back
    return outermost not in BUILDING


@pytest.fixture(scope="module")
def reads() -> Iterator[set[Key]]:
    """(class, key) of every read of a configuration's attribute while the fixture is in use."""
    found: set[Key] = set()

    def read(self: Section, name: str) -> object:
        if name in type(self).model_fields and is_in_use(sys._getframe(1)):
            found.add((type(self).__name__, name))
        return object.__getattribute__(self, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Section, "__getattribute__", read, raising=False)
        yield found


@pytest.fixture(scope="module")
def inline_runs(reads: set[Key], workspace: Workspace, ppo_workspace: Workspace, tmp_path_factory) -> set[Key]:
    """What one iteration of each stage reads."""
    root = tmp_path_factory.mktemp("keys")
    short = ["training.train_iters=1", "training.eval_interval=1"]
    held_out = f"training.eval_data_path={workspace.data}/heldout"
    one = ["training.global_batch_size=4", "training.trackers=jsonl"]
    post_train(workspace.arguments("sft", root / "sft", *short, *one, f"training.eval_data_path={workspace.data}/sft"))
    kl = ["algorithm.use_kl_loss=true", "algorithm.kl_loss_coef=0.1"]
    two = [f"{ACTOR}.n_samples_per_prompt=2", f"{ACTOR}.ppo_mini_batch_size=8", f"training.export_hf={root}/hf"]
    post_train(workspace.arguments("grpo", root / "grpo", *short, *one, *two, *kl, held_out))
    post_train(ppo_workspace.arguments("orm", root / "orm", *short, *one))
    reward = f"reward.functions=[{{name: fraction_right, path: {workspace.task}/rewards.py}}]"
    mini = [f"{ACTOR}.ppo_mini_batch_size=4", "critic.critic_mini_batch_size=4"]
    post_train(ppo_workspace.arguments("ppo", root / "ppo", *short, *one, *mini, held_out, reward))
    return reads


class StandIns:
    """Ranks that do nothing, one replica."""

    def __init__(self, *_: object, **__: object) -> None:
        self.coordinates = [SimpleNamespace(data_size=1, data_rank=0, is_collector=True)]
        self.has_gpus = False

    def run(self, method: str, arguments: list[tuple[object, ...]]) -> list[None]:
        return [None] * len(arguments)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def all_reads(inline_runs: set[Key], ppo_workspace: Workspace, tmp_path_factory) -> set[Key]:
    """What the runs read, and what starting every model in processes of its own does."""
    apart = [f"{ACTOR}.num_gpus_for_infer=1", *(f"resource_pool.{role}=1" for role in ("ref", "critic", "reward"))]
    overrides = ["training.executor=ray", *apart]
    config = compose_config("ppo", overrides, str(ppo_workspace.root / "configs"))
    checkpoint = latest_iteration_dir(Path(config.actor.load))
    with pytest.MonkeyPatch.context() as patch:
        stand_ins = SimpleNamespace(RayCluster=StandIns, RayRanks=StandIns)
        patch.setitem(sys.modules, "mindllm.workers.ray_ranks", stand_ins)
        with Cluster(config) as cluster:
            cluster.start_actor(checkpoint, 1, False)
            cluster.start_critic(checkpoint, 1, False)
            cluster.start_ref(checkpoint)
            cluster.start_reward(checkpoint)
    return inline_runs


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_key_is_read_by_a_run(all_reads: set[Key], section: type[Section]):
    unread = {key for key in section.model_fields if (section.__name__, key) not in all_reads}
    assert unread == READ_WHILE_BUILDING.keys() & section.model_fields.keys()

"""Section ``training``: what the whole run does, whoever does it."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from mindllm.config.base import CommaList, Float, Int, Section
from mindllm.config.paths import DataPrefix, LocalPath

Stage = Literal["sft", "orm", "ray_grpo", "ray_ppo"]
STAGE_ALIASES = {"grpo": "ray_grpo", "ppo": "ray_ppo"}
SUPERVISED_STAGES = frozenset({"sft", "orm"})
Tracker = Literal["jsonl", "tensorboard", "wandb"]

WANDB_KEYS = ("wandb_project", "wandb_exp_name", "wandb_group", "wandb_entity", "wandb_save_dir")
RL_ONLY_TRAINING_KEYS = frozenset({"eval_n_samples_per_prompt", "sample_dump_interval"})


def _stage_name(value: object) -> object:
    return STAGE_ALIASES.get(value, value) if isinstance(value, str) else value


class TrainingConfig(Section):
    """Length, batch, saving, evaluation and logging of a run."""

    stage: Annotated[Stage, BeforeValidator(_stage_name)] = Field(
        description="What the run does: `sft` (supervised fine-tuning), `orm` (reward model), `ray_grpo` (also written "
        "`grpo`) or `ray_ppo` (also written `ppo`)."
    )
    train_iters: Int = Field(ge=1, description="Iterations of the run; one iteration uses one global batch.")
    global_batch_size: Int = Field(
        ge=1,
        description="Prompts per iteration (stage `sft`: sequences, `orm`: pairs per optimizer step), over all "
        "processes.",
    )
    run_dir: LocalPath = Field(
        default="runs/default",
        description="Directory of the run: resolved config, metrics, samples, checkpoints. "
        "The same command with the same directory resumes.",
        json_schema_extra={"default_text": "`runs/<config name>`"},
    )
    seed: Int = Field(default=0, ge=0, lt=2**63, description="Seed of data order and sampling.")
    executor: Literal["ray", "inline"] = Field(
        default="ray", description="`ray` starts worker processes; `inline` runs one rank in this process."
    )
    no_shuffle: bool = Field(default=False, description="Read the data in file order instead of shuffling each epoch.")
    allow_changed_data: bool = Field(
        default=False,
        description="Resume although the contents of `data_path` or `eval_data_path` are not those that the run has "
        "read so far.",
    )
    save_interval: Int = Field(
        default=50, ge=1, description="Iterations between checkpoints; the last iteration is always saved."
    )
    keep_last_n: Int | None = Field(default=None, ge=1, description="Checkpoints to keep; unset keeps all.")
    export_hf: LocalPath | None = Field(
        default=None,
        description="Directory for a Hugging Face export of the final model; unset: none.",
    )
    eval_interval: Int | None = Field(
        default=None, ge=1, description="Iterations between held-out evaluations; unset never evaluates."
    )
    eval_data_path: DataPrefix | None = Field(default=None, description="Prefix of the held-out indexed data.")
    eval_n_samples_per_prompt: Int = Field(
        default=1, ge=1, description="Responses per held-out prompt: one is greedy, several are sampled."
    )
    log_interval: Int = Field(default=1, ge=1, description="Iterations between progress lines.")
    sample_dump_interval: Int = Field(
        default=1,
        ge=1,
        description="Iterations between dumps of prompts, responses and rewards to `samples/*.jsonl`.",
    )
    trackers: Annotated[list[Tracker], CommaList] = Field(
        default=["jsonl", "tensorboard"], description="Where metrics go: `jsonl`, `tensorboard`, `wandb`."
    )
    wandb_project: str | None = Field(
        default=None,
        min_length=1,
        description="Project of the W&B run.",
        json_schema_extra={"default_text": "`$WANDB_PROJECT`, else `mindllm`"},
    )
    wandb_exp_name: str | None = Field(
        default=None,
        min_length=1,
        description="Name of the W&B run.",
        json_schema_extra={"default_text": "`$WANDB_NAME`, else the last part of `run_dir`"},
    )
    wandb_group: str | None = Field(
        default=None,
        min_length=1,
        description="Group of the W&B run.",
        json_schema_extra={"default_text": "`$WANDB_RUN_GROUP`, else none"},
    )
    wandb_entity: str | None = Field(
        default=None,
        min_length=1,
        description="User or team that owns the W&B project.",
        json_schema_extra={"default_text": "`$WANDB_ENTITY`, else that of the login"},
    )
    wandb_save_dir: LocalPath | None = Field(
        default=None,
        description="Directory of W&B's own files.",
        json_schema_extra={"default_text": "`$WANDB_DIR`, else `run_dir`"},
    )
    max_skipped_steps: Int = Field(
        default=3, ge=1, description="Optimizer steps in a row with a non-finite gradient after which the run stops."
    )
    worker_timeout_s: Float = Field(
        default=1800.0, gt=0, description="Longest time one call to a worker may take, in seconds."
    )
    resource_timeout_s: Float = Field(
        default=120.0, gt=0, description="Longest wait for the cluster's resources, in seconds."
    )

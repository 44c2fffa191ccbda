"""Command line of posttrain_gpt.py. Starts fast: hydra is imported when there is something to compose."""

from dataclasses import dataclass

from mindllm.command_line import Parser, program
from mindllm.config.actor import ActorConfig
from mindllm.config.catalog import config_names
from mindllm.config.foreign import unknown_flag
from mindllm.config.layers import KEYS_BY_SECTION
from mindllm.config.training import TrainingConfig
from mindllm.errors import known_answer
from mindllm.resources import TRAINER_CONFIGS

_STAGES = {
    "sft": "supervised fine-tuning",
    "orm": "reward model from preference pairs",
    "ray_grpo": "group relative policy optimization (also written grpo)",
    "ray_ppo": "proximal policy optimization with a critic (also written ppo)",
}
_COMMON_TRAINING = ("stage", "train_iters", "global_batch_size", "run_dir", "save_interval", "eval_interval", "seed")
_COMMON_ACTOR = (
    "load",
    "data_path",
    "seq_length",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "bf16",
    "lr",
    "n_samples_per_prompt",
    "ppo_mini_batch_size",
    "max_new_tokens",
)


@dataclass(frozen=True)
class Command:
    """What the command line asks for."""

    config_name: str
    config_dir: str | None
    overrides: list[str]
    print_config: bool
    check_only: bool


def parse_command(arguments: list[str]) -> Command:
    """Read the command line; ``--help`` prints and exits.

    Raises:
        UserError: a flag is unknown or ``--config-name`` is missing.
    """
    prog = program("posttrain_gpt.py", "posttrain")
    parser = Parser(
        prog=prog,
        usage=f"{prog} --config-name NAME [--config-dir DIR] [--cfg | --check] [key=value ...]",
        description="Post-train a language model as a YAML configuration says.",
        epilog=_epilog(prog),
    )
    parser.add_argument("--config-name", required=True, metavar="NAME", help="a config below, or a YAML file's path")
    parser.add_argument("--config-dir", metavar="DIR", help="where NAME is looked up (default: configs/rlxf)")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--cfg", action="store_true", help="print the resolved configuration and stop")
    mode.add_argument("--check", action="store_true", help="run every check, launch nothing")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="wins over the files; the last one counts")
    parser.check_flags(arguments, _known_elsewhere)
    found = parser.parse_intermixed_args(arguments)
    return Command(found.config_name, found.config_dir, found.overrides, found.cfg, found.check)


_FLAGS_ELSEWHERE = {
    "config_path": "write --config-dir, or the path of the file in --config-name",
    "config config_file yaml": "write --config-name",
    "multirun": "one command is one run",
    "resolve": "--cfg prints the configuration resolved",
    "dry_run": "write --check, or --cfg",
}


def _known_elsewhere(flag: str) -> str | None:
    return known_answer(flag, _FLAGS_ELSEWHERE) or unknown_flag(flag, KEYS_BY_SECTION)


def _epilog(prog: str) -> str:
    stages = "".join(f"  {name:<10} {meaning}\n" for name, meaning in _STAGES.items())
    configs = "".join(f"  {name}\n" for name in config_names(TRAINER_CONFIGS))
    keys = "".join(f"  training.{key}: {TrainingConfig.model_fields[key].description}\n" for key in _COMMON_TRAINING)
    keys += "".join(
        f"  actor_rollout_ref.actor_rollout.{key}: {ActorConfig.model_fields[key].description}\n"
        for key in _COMMON_ACTOR
    )
    return (
        f"stages (training.stage):\n{stages}\nconfigs (configs/rlxf):\n{configs}\n"
        f"common keys (every key: docs/configuration.md):\n{keys}\n"
        f"example:\n  {prog} --config-name grpo_trainer_quickstart training.train_iters=20\n"
    )

"""The checks that need other rooms than the configuration: checkpoints, data, rewards, machine."""

from dataclasses import asdict
from pathlib import Path

from mindllm.checkpoint import CheckpointInfo, latest_iteration_dir, read_checkpoint_info
from mindllm.checkpoint.mcore_to_hf import check_source
from mindllm.checkpoint.recipe import make_recipe
from mindllm.checkpoint.torch_dist import TorchDistReader
from mindllm.config import RoleConfig, RunConfig, architecture_mismatches
from mindllm.data import load_tokenizer, stop_token_ids
from mindllm.errors import UserError
from mindllm.models.families import Architecture
from mindllm.preflight.data import check_instructions, check_prompts
from mindllm.preflight.machine import check_executor, check_export, check_memory, check_writable


def check(config: RunConfig) -> list[str]:
    """Check the run against what is on disk and on this machine; starts nothing and loads no model.

    Returns:
        One line for each thing that was checked, in the order of checking.

    Raises:
        UserError: the first thing that is wrong.
    """
    training, actor = config.training, config.actor
    passed = []
    info = _check_role("actor", actor)
    passed.append(f"actor: {info.architecture.family}, {info.architecture.num_layers} layers, {actor.load}")
    if config.ref is not None:
        reference = _check_role("ref", config.ref)
        if reference.vocab_size != info.vocab_size:
            raise UserError(
                f"ref.load: {config.ref.load} has a vocabulary of {reference.vocab_size} tokens, "
                f"the actor's has {info.vocab_size}; log-probs of one cannot be compared with the other"
            )
        passed.append(f"ref: {config.ref.load}")
    _check_tokenizer(actor.tokenizer_name_or_path, info)
    _check_window(actor.seq_length, info)
    passed.append("tokenizer")
    if training.stage == "sft":
        passed += check_instructions(config, info)
    else:
        _check_stop_ids(config, info)
        passed += check_prompts(config, info)
    check_executor(config)
    check_memory(config, info)
    check_writable(Path(training.run_dir), "training.run_dir")
    check_writable(Path(actor.save), "actor_rollout.save")
    if training.export_hf is not None:
        check_export(Path(training.export_hf), Path(training.run_dir))
    passed.append(f"run directory: {training.run_dir}")
    return passed


def _check_role(role: str, config: RoleConfig) -> CheckpointInfo:
    """The role's checkpoint exists, is what the configuration says it is, and can be split as asked."""
    directory = latest_iteration_dir(Path(config.load))
    info = read_checkpoint_info(directory)
    for name in ("common.pt", "metadata.json"):
        if not (directory / name).is_file():
            raise UserError(f"{role}.load: {directory} is not a complete torch_dist checkpoint, {name} is missing")
    with TorchDistReader(directory) as reader:
        check_source(reader, make_recipe(info.architecture, info.padded_vocab_size, None))
    mismatches = architecture_mismatches(config.model_keys, asdict(info.architecture))
    if mismatches:
        raise UserError(f"{role}.model: the checkpoint {config.load} is another architecture: {'; '.join(mismatches)}")
    _check_layout(role, config, info.architecture)
    return info


def _check_layout(role: str, config: RoleConfig, arch: Architecture) -> None:
    tp, pp = config.tensor_model_parallel_size, config.pipeline_model_parallel_size
    divisible = {
        "attention heads": arch.num_attention_heads,
        "query groups": arch.num_query_groups,
        "feed-forward columns": arch.ffn_hidden_size,
    }
    for what, count in divisible.items():
        if count % tp:
            raise UserError(
                f"{role}.tensor_model_parallel_size: {tp} does not divide the {count} {what} of {config.load}; "
                f"allowed: {_divisors(*divisible.values())}"
            )
    if arch.num_layers % pp:
        raise UserError(
            f"{role}.pipeline_model_parallel_size: {pp} does not divide the {arch.num_layers} layers of {config.load}; "
            f"allowed: {_divisors(arch.num_layers)}"
        )
    per_chunk, per_stage = config.num_layers_per_virtual_pipeline_stage, arch.num_layers // pp
    if per_chunk and (per_stage % per_chunk or per_stage == per_chunk):
        raise UserError(
            f"{role}.num_layers_per_virtual_pipeline_stage: {per_chunk} does not split the {per_stage} layers of a "
            f"pipeline stage of {config.load} into two or more chunks"
        )


def _divisors(*numbers: int) -> str:
    common = [n for n in range(1, min(numbers) + 1) if all(number % n == 0 for number in numbers)]
    return ", ".join(map(str, common))


def _check_tokenizer(path: str | None, info: CheckpointInfo) -> None:
    tokenizer = load_tokenizer(path or info.hf_dir)
    if len(tokenizer) > info.vocab_size:
        raise UserError(
            f"tokenizer_name_or_path: {path or info.hf_dir} has {len(tokenizer)} tokens, "
            f"the model's vocabulary only {info.vocab_size}"
        )


def _check_window(seq_length: int, info: CheckpointInfo) -> None:
    window = info.architecture.max_position_embeddings
    if seq_length > window:
        raise UserError(f"seq_length: {seq_length} is more than the {window} positions the model was made for")


def _check_stop_ids(config: RunConfig, info: CheckpointInfo) -> None:
    tokenizer = load_tokenizer(config.actor.tokenizer_name_or_path or info.hf_dir)
    ids = config.actor.eos_token_ids or stop_token_ids(tokenizer, info.hf_dir)
    if not ids:
        raise UserError(f"actor_rollout.eos_token_ids: missing, and neither tokenizer nor {info.hf_dir} names one")
    beyond = [token for token in ids if not 0 <= token < info.vocab_size]
    if beyond:
        raise UserError(f"actor_rollout.eos_token_ids: {beyond} are no tokens of a vocabulary of {info.vocab_size}")

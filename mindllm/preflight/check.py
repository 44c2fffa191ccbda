"""The checks that need other rooms than the configuration: checkpoints, data, rewards, machine."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from mindllm.checkpoint import CheckpointInfo, SizeNames, check_layout, latest_iteration_dir, read_checkpoint_info
from mindllm.config import ActorConfig, RoleConfig, RunConfig, TrainedRoleConfig, architecture_mismatches
from mindllm.convert.endpoints.torch_dist import DistSource
from mindllm.convert.plan import ordered_weights
from mindllm.data import load_tokenizer, read_template_record, stop_token_ids, template_end_ids
from mindllm.errors import UserError
from mindllm.formats.torch_dist import TorchDistReader
from mindllm.models.families import Architecture, unsupported_for_training
from mindllm.preflight.data import (
    check_instructions,
    check_pairs,
    check_prompts,
    check_retemplated,
    check_tokenized_alike,
)
from mindllm.preflight.machine import (
    check_completed,
    check_executor,
    check_export,
    check_trackers,
    check_writable,
)
from mindllm.preflight.memory import check_memory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def check(config: RunConfig) -> list[str]:
    """Check the run against what is on disk and on this machine; starts nothing and loads no model.

    Returns:
        One line for each thing that was checked, in the order of checking.

    Raises:
        UserError: the first thing that is wrong.
    """
    training, actor = config.training, config.actor
    infos = {role: _check_role(role, settings, training.stage) for role, settings in config.roles().items()}
    passed = [
        f"{role}: {info.architecture.family}, {info.architecture.num_layers} layers, {config.roles()[role].load}"
        for role, info in infos.items()
    ]
    info = infos["actor_rollout"]
    if "ref" in infos and infos["ref"].vocab_size != info.vocab_size:
        raise UserError(
            f"ref.load: {config.ref.load} has a vocabulary of {infos['ref'].vocab_size} tokens, the actor's has "
            f"{info.vocab_size}; log-probs of one cannot be compared with the other"
        )
    if "critic" in infos and infos["critic"].vocab_size < info.vocab_size:
        raise UserError(
            f"critic.load: {config.critic.load} has a vocabulary of {infos['critic'].vocab_size} tokens, the actor's "
            f"has {info.vocab_size}; the critic reads the actor's tokens"
        )
    _check_tokenizer("tokenizer_name_or_path", actor.tokenizer_name_or_path, info)
    if "reward" in infos:
        own = config.reward_model.tokenizer_name_or_path
        _check_tokenizer("reward.tokenizer_name_or_path", own, infos["reward"])
        check_retemplated(config, actor.tokenizer_name_or_path or info.hf_dir, own or infos["reward"].hf_dir)
    check_tokenized_alike(config, actor.tokenizer_name_or_path or info.hf_dir)
    passed.append("tokenizer")
    if training.stage == "sft":
        passed += check_instructions(config, info)
    elif training.stage == "orm":
        passed += check_pairs(config, info)
    else:
        passed.append(_check_stop_ids(config, info))
        passed += check_prompts(config, info)
    check_trackers(training.trackers)
    check_executor(config)
    passed += check_memory(config, infos)
    check_writable(Path(training.run_dir), "training.run_dir")
    for role, settings in config.roles().items():
        if isinstance(settings, TrainedRoleConfig):
            check_writable(Path(settings.save), f"{role}.save")
    completed = check_completed(config)
    if training.export_hf is not None and completed < training.train_iters:
        check_export(Path(training.export_hf))
    passed.append(f"run directory: {training.run_dir}")
    return passed


def _check_role(role: str, config: RoleConfig, stage: str) -> CheckpointInfo:
    """The role's checkpoint exists, is what the configuration says it is, and can be split as asked."""
    try:
        directory = latest_iteration_dir(Path(config.load))
        info = read_checkpoint_info(directory)
    except UserError as error:
        raise UserError(f"{role}.load: {error}") from None
    if (directory / "mp_rank_00").is_dir() or any(directory.glob("mp_rank_00_*")):
        raise UserError(
            f"{role}.load: {directory} has Megatron's files per rank; convert it with convert_ckpt.py "
            "--load-model-type mcore --save-model-type mcore --ckpt-format torch_dist"
        )
    try:
        with TorchDistReader(directory) as reader:
            DistSource(reader, ordered_weights(info.architecture))
            reader.check_loadable()
    except UserError as error:
        raise UserError(f"{role}.load: {error}") from None
    obstacle = unsupported_for_training(info.architecture)
    if obstacle is not None:
        raise UserError(f"{role}.load: {config.load} cannot be trained or scored here: {obstacle}")
    wants_scalar = role in ("critic", "reward") or stage == "orm"
    if wants_scalar != info.architecture.scalar_head:
        found, remedy = ("a language model", "convert it with convert_ckpt.py --head reward")
        if info.architecture.scalar_head:
            found, remedy = ("a model that scores with one number", "give the language model itself")
        raise UserError(f"{role}.load: {config.load} is {found}; {remedy}")
    mismatches = architecture_mismatches(config.model_keys, asdict(info.architecture))
    if mismatches:
        raise UserError(f"{role}.model: the checkpoint {config.load} is another architecture: {'; '.join(mismatches)}")
    _check_layout(role, config, info.architecture)
    _check_window(role, config.seq_length, info)
    return info


def _check_layout(role: str, config: RoleConfig, arch: Architecture) -> None:
    tp, pp = config.tensor_model_parallel_size, config.pipeline_model_parallel_size
    names = SizeNames(f"{role}.tensor_model_parallel_size:", f"{role}.pipeline_model_parallel_size:")
    inference = SizeNames(f"{role}.inference_tensor_model_parallel_size:")
    try:
        check_layout(arch, tp, pp, names=names)
        if isinstance(config, ActorConfig) and config.num_gpus_for_infer:
            check_layout(arch, config.inference_tensor_model_parallel_size, None, names=inference)
    except UserError as error:
        raise UserError(f"{error} ({config.load})") from None
    per_chunk, per_stage = config.num_layers_per_virtual_pipeline_stage, arch.num_layers // pp
    if per_chunk and (per_stage % per_chunk or per_stage == per_chunk):
        raise UserError(
            f"{role}.num_layers_per_virtual_pipeline_stage: {per_chunk} does not split the {per_stage} layers of a "
            f"pipeline stage of {config.load} into two or more chunks"
        )


def _check_tokenizer(key: str, path: str | None, info: CheckpointInfo) -> None:
    tokenizer = load_tokenizer(path or info.hf_dir)
    if len(tokenizer) > info.vocab_size:
        raise UserError(
            f"{key}: {path or info.hf_dir} has {len(tokenizer)} tokens, the model's vocabulary only {info.vocab_size}"
        )


def _check_window(role: str, seq_length: int, info: CheckpointInfo) -> None:
    window = info.architecture.max_position_embeddings
    if seq_length > window:
        raise UserError(f"{role}.seq_length: {seq_length} is more than the {window} positions the model was made for")


def _check_stop_ids(config: RunConfig, info: CheckpointInfo) -> str:
    """There are end tokens, all in the vocabulary, and those of the data's templates among them; says which."""
    tokenizer = load_tokenizer(config.actor.tokenizer_name_or_path or info.hf_dir)
    prefixes = config.data_prefixes
    ids = config.actor.eos_token_ids or stop_token_ids(tokenizer, info.hf_dir, list(prefixes.values()))
    if not ids:
        raise UserError(f"actor_rollout.eos_token_ids: missing, and neither tokenizer nor {info.hf_dir} names one")
    beyond = [token for token in ids if not 0 <= token < info.vocab_size]
    if beyond:
        raise UserError(f"actor_rollout.eos_token_ids: {beyond} are no tokens of a vocabulary of {info.vocab_size}")
    for key, prefix in prefixes.items():
        _warn_of_ends(key, prefix, ids, tokenizer)
    return "end tokens: " + ", ".join(f"{tokenizer.convert_ids_to_tokens(token)} ({token})" for token in ids)


def _warn_of_ends(key: str, prefix: str, stop_ids: list[int], tokenizer: "PreTrainedTokenizerBase") -> None:
    """Print why a model trained on answers as in this data may not stop where they end."""
    record = read_template_record(prefix)
    if record is None:
        print(
            f"{key}: {prefix} does not say which token ends an answer (another toolkit or an earlier version wrote "
            "it); responses end at those of the model's files alone"
        )
    elif not record.end_tokens:
        print(
            f"{key}: no token ends an answer in {prefix} (template {record.name}), so a model trained on such answers "
            "does not stop; preprocess with a template whose `answer` ends with a token"
        )
    for token in template_end_ids(tokenizer, [prefix]):
        if token not in stop_ids:
            print(
                f"actor_rollout.eos_token_ids: {token} ({tokenizer.convert_ids_to_tokens(token)}), which ends answers "
                f"in {prefix}, is missing, so responses do not stop there; add it, or leave the key out"
            )

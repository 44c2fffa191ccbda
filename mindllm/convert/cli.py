"""The command line of ``convert_ckpt.py``."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from mindllm.checkpoint.info import HEADS
from mindllm.command_line import Parser, path, positive, program, report_os_error, say, seed
from mindllm.convert.converter import convert
from mindllm.convert.options import DEFAULT_MAX_SHARD_BYTES, Options
from mindllm.errors import UserError, known_answer

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def build_parser() -> Parser:
    """Return the parser; unset options are None, so that one without effect can be refused."""
    parser = Parser(
        prog=program("convert_ckpt.py", "convert"),
        description="Convert a model between Hugging Face safetensors and megatron-core checkpoints, bit for bit.",
    )
    parser.add_argument("--load-model-type", choices=("hf", "mcore"), required=True)
    parser.add_argument("--save-model-type", choices=("hf", "mcore"), required=True)
    parser.add_argument(
        "--load-dir", type=path, required=True, help="HF model directory, or a directory with iter_* in it"
    )
    parser.add_argument("--save-dir", type=path, required=True, help="new directory; it appears only when complete")
    parser.add_argument(
        "--model-type-hf", default="auto", help="family to expect, by its model_type (auto = as config.json says)"
    )
    parser.add_argument(
        "--ignore-config-field",
        action="append",
        metavar="NAME",
        help="read config.json without this field, which is not known here (repeatable); recorded in mindllm.json",
    )
    parser.add_argument(
        "--params-dtype",
        choices=("float32", "bfloat16", "float16", "fp32", "bf16", "fp16"),
        help="dtype of the result (default: that of the source)",
    )
    parser.add_argument("--lora-load", type=_directory, metavar="DIR", help="PEFT adapter to merge into the weights")
    parser.add_argument("--workers", type=positive, default=1, metavar="N", help="processes that read and write (1)")
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the plan, write nothing")
    parser.add_argument("--verify", action="store_true", help="read the result back and compare; refuse NaN")
    head = parser.add_argument_group("scalar head of a reward model or critic")
    head.add_argument("--head", choices=HEADS, help="(default: the source's; a reward head for ...ForSequence...)")
    head.add_argument("--head-init", choices=("normal", "zeros"), help="of a head put on a language model (normal)")
    head.add_argument("--seed", type=seed, help="of a normal head (0)")

    to_mcore = parser.add_argument_group("-> mcore")
    to_mcore.add_argument(
        "--ckpt-format",
        choices=("torch_dist", "torch"),
        help="torch_dist: files that any layout loads (default); torch: Megatron's file per rank",
    )
    to_mcore.add_argument(
        "--make-vocab-size-divisible-by", type=positive, metavar="N", help="pad the vocabulary to a multiple of N (1)"
    )
    to_mcore.add_argument(
        "--target-tensor-parallel-size",
        type=positive,
        metavar="N",
        help="checked and recorded; only files of --ckpt-format torch depend on it",
    )
    to_mcore.add_argument("--target-pipeline-parallel-size", type=positive, metavar="N", help="likewise")
    to_mcore.add_argument("--target-expert-parallel-size", type=positive, metavar="N", help="likewise")
    to_mcore.add_argument(
        "--num-layers-per-virtual-pipeline-stage", type=positive, metavar="N", help="torch: interleaved chunks"
    )
    to_mcore.add_argument(
        "--num-layer-list", type=_positive_list, metavar="N,N", help="torch: layers of each pipeline rank"
    )

    to_mcore.add_argument(
        "--with-optimizer", action="store_true", default=None, help="mcore -> mcore, torch_dist: keep its state too"
    )

    to_hf = parser.add_argument_group("mcore ->")
    to_hf.add_argument("--iteration", type=positive, metavar="N", help="(default: the latest)")
    to_hf.add_argument(
        "--hf-dir", type=_directory, metavar="DIR", help="config.json and tokenizer of a checkpoint that Megatron saved"
    )
    to_hf.add_argument(
        "--max-shard-size", type=_num_bytes, metavar="SIZE", help="to hf: e.g. 500MB or 2GiB (default: 5GB)"
    )
    return parser


_ARCHITECTURE = "the architecture is read from the model itself (config.json or mindllm.json)"
# Flags of MindSpeed, Megatron, ms-swift and verl, without dashes: what to do here instead.
_FLAGS_ELSEWHERE = {
    "save_lora*": "an adapter is merged into the weights (--lora-load), not written",
    "lora_* merge_lora adapters adapter_* peft_*": "rank, scale and targets are read from the adapter's own "
    "adapter_config.json; --lora-load DIR is all it takes",
    "orm reward_model": "write --head reward",
    "loader saver model_type spec megatron_path use_mcore_models no_checking max_queue_size load_checkpoint_loosely "
    "to_mcore to_hf backend": "--load-model-type and --save-model-type say all that is needed",
    "tokenizer* vocab_file": "the tokenizer is copied with the model",
    "hf_cfg_dir hf_config* load_hf_from_config": "write --hf-dir",
    "tensor_model_parallel_size tensor_parallel_size tp target_tp": "write --target-tensor-parallel-size",
    "pipeline_model_parallel_size pipeline_parallel_size pp target_pp": "write --target-pipeline-parallel-size",
    "expert_model_parallel_size expert_parallel_size ep target_ep": "write --target-expert-parallel-size",
    "virtual_pipeline_model_parallel_size vpp": "write --num-layers-per-virtual-pipeline-stage",
    "num_layers hidden_size num_attention_heads ffn_hidden_size add_qkv_bias qk_layernorm position_embedding_type "
    "rotary_base num_experts moe_* true_vocab_size max_position_embeddings untie_*": _ARCHITECTURE,
    "torch_dtype dtype bf16 fp16 fp32": "write --params-dtype",
    "load checkpoint_path checkpoint_dir local_dir hf_model* mcore_model model model_path model_name_or_path "
    "input_dir": "write --load-dir",
    "save output_dir output_path target_dir": "write --save-dir",
    "test_convert_precision": "write --verify",
    "safe_serialization": "weights are always written as safetensors",
    "num_workers": "write --workers",
    "trust_remote_code": "no code from a model's folder is run; the model families are built in",
}


def main(arguments: Sequence[str]) -> int:
    """Parse, convert and return the exit status (2: a mistake of the user's, 130: interrupted)."""
    try:
        parser = build_parser()
        parser.check_flags(arguments, lambda flag: known_answer(flag, _FLAGS_ELSEWHERE))
        _convert(parser.parse_args(arguments))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # a source that may not be read, a full disk
        return report_os_error(error)
    except MemoryError as error:
        print(f"error: out of memory: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


# Options that only some directions have, by the directions (load and save type) that have them.
_LOADS_MCORE = {("mcore", "hf"), ("mcore", "mcore")}
_SAVES_MCORE = {("hf", "mcore"), ("mcore", "mcore")}
_DIRECTIONS = {
    "iteration": _LOADS_MCORE,
    "hf_dir": _LOADS_MCORE,
    "max_shard_size": {("mcore", "hf")},
    "ckpt_format": _SAVES_MCORE,
    "make_vocab_size_divisible_by": _SAVES_MCORE,
    "target_tensor_parallel_size": _SAVES_MCORE,
    "target_pipeline_parallel_size": _SAVES_MCORE,
    "target_expert_parallel_size": _SAVES_MCORE,
    "num_layers_per_virtual_pipeline_stage": _SAVES_MCORE,
    "num_layer_list": _SAVES_MCORE,
    "with_optimizer": {("mcore", "mcore")},
}


def _convert(options: argparse.Namespace) -> None:
    direction = (options.load_model_type, options.save_model_type)
    if direction == ("hf", "hf"):
        raise UserError("hf -> hf is not a conversion; supported: hf -> mcore, mcore -> hf and mcore -> mcore")
    without_effect = [name for name, directions in _DIRECTIONS.items() if direction not in directions]
    _refuse(options, without_effect, f"{direction[0]} -> {direction[1]}")
    if options.head in (None, "lm"):
        _refuse(options, ("head_init", "seed"), f"{direction[0]} -> {direction[1]} without a new head")
    if options.ckpt_format != "torch":
        _refuse(options, ("num_layers_per_virtual_pipeline_stage", "num_layer_list"), "--ckpt-format torch_dist")
    dtypes = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
    settings = Options(
        options.load_model_type,
        options.save_model_type,
        family=None if options.model_type_hf == "auto" else options.model_type_hf,
        iteration=options.iteration,
        hf_dir=options.hf_dir,
        ignored_config_fields=tuple(options.ignore_config_field or ()),
        params_dtype=dtypes.get(options.params_dtype, options.params_dtype),
        make_vocab_size_divisible_by=options.make_vocab_size_divisible_by or 1,
        tensor_parallel_size=options.target_tensor_parallel_size,
        pipeline_parallel_size=options.target_pipeline_parallel_size,
        expert_parallel_size=options.target_expert_parallel_size,
        num_layers_per_virtual_pipeline_stage=options.num_layers_per_virtual_pipeline_stage,
        num_layer_list=options.num_layer_list,
        ckpt_format=options.ckpt_format or "torch_dist",
        with_optimizer=bool(options.with_optimizer),
        head=options.head,
        head_init=options.head_init or "normal",
        seed=options.seed or 0,
        max_shard_bytes=options.max_shard_size or DEFAULT_MAX_SHARD_BYTES,
        lora_load=options.lora_load,
        workers=options.workers,
        verify=options.verify,
        dry_run=options.dry_run,
    )
    from mindllm.formats.files import keep_freed_memory

    keep_freed_memory()
    convert(options.load_dir, options.save_dir, settings, say)


def _refuse(options: argparse.Namespace, names: Sequence[str], reason: str) -> None:
    """Refuse options that would have no effect, for the ``reason`` given."""
    for name in names:
        if getattr(options, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} has no effect with {reason}; leave it out")


def _directory(text: str) -> Path:
    return Path(path(text))


def _positive_list(text: str) -> tuple[int, ...]:
    return tuple(positive(part.strip()) for part in text.split(","))


def _num_bytes(text: str) -> int:
    """Return the bytes of ``500MB``, ``2GiB`` or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or float(match[1]) * unit < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500MB or 2GiB")
    return int(float(match[1]) * unit)

"""What a conversion may be told. No torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mindllm.checkpoint.info import Head
from mindllm.convert.scalar_head import HeadInit

ModelType = Literal["hf", "mcore"]
DEFAULT_MAX_SHARD_BYTES = 5 * 10**9


@dataclass(frozen=True)
class Options:
    """One conversion's settings, named as on the command line; those of the other direction are not read.

    ``family`` is checked against ``config.json`` when given. ``hf_dir`` holds ``config.json`` and tokenizer of an mcore
    checkpoint that has none beside it. ``ignored_config_fields`` of its ``config.json`` are read as if they were not
    there. Weights keep their dtype unless ``params_dtype`` names
    another. The vocabulary of an mcore result is padded with zero rows to a multiple of
    ``make_vocab_size_divisible_by``, times the tensor-parallel size in the format ``torch``, which has a file per rank.
    Files of ``torch_dist`` do not depend on parallel sizes, which are only checked and recorded. ``with_optimizer``
    keeps the optimizer of a torch_dist source. Without ``head`` the result has the source's; a new head is
    ``head_init`` by ``seed``. A shard of a Hugging Face result holds at most ``max_shard_bytes``, unless one tensor is
    larger. The adapter in ``lora_load`` is merged into the weights. ``workers`` processes read and write. With
    ``dry_run`` everything is checked and nothing written.
    """

    load_model_type: ModelType
    save_model_type: ModelType
    family: str | None = None
    iteration: int | None = None
    hf_dir: Path | None = None
    ignored_config_fields: tuple[str, ...] = ()
    params_dtype: str | None = None
    make_vocab_size_divisible_by: int = 1
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    expert_parallel_size: int | None = None
    num_layers_per_virtual_pipeline_stage: int | None = None
    num_layer_list: tuple[int, ...] | None = None
    ckpt_format: Literal["torch_dist", "torch"] = "torch_dist"
    with_optimizer: bool = False
    head: Head | None = None
    head_init: HeadInit = "normal"
    seed: int = 0
    max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES
    lora_load: Path | None = None
    workers: int = 1
    verify: bool = False
    dry_run: bool = False

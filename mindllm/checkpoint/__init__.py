"""What a run reads and writes beside data: its state, model and optimizer, and what a checkpoint says of itself."""

from mindllm.checkpoint.chat_files import add_chat_template, add_end_tokens, set_eos_token
from mindllm.checkpoint.divisibility import SizeNames, check_layout
from mindllm.checkpoint.info import (
    CheckpointInfo,
    copy_hf_files,
    latest_iteration_dir,
    read_checkpoint_info,
    write_checkpoint_info,
)

__all__ = [
    "CheckpointInfo",
    "SizeNames",
    "add_chat_template",
    "add_end_tokens",
    "check_layout",
    "copy_hf_files",
    "latest_iteration_dir",
    "read_checkpoint_info",
    "set_eos_token",
    "write_checkpoint_info",
]

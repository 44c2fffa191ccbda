"""Checkpoints: conversion, and what lies beside the tensors. Importing this does not import torch."""

from mindllm.checkpoint.chat_files import add_chat_template, add_end_tokens, set_eos_token
from mindllm.checkpoint.converter import convert, convert_hf_to_mcore, convert_mcore_to_hf
from mindllm.checkpoint.divisibility import SizeNames, check_layout
from mindllm.checkpoint.info import (
    CheckpointInfo,
    copy_hf_files,
    latest_iteration_dir,
    read_checkpoint_info,
    write_checkpoint_info,
)
from mindllm.checkpoint.options import Options

__all__ = [
    "CheckpointInfo",
    "Options",
    "SizeNames",
    "add_chat_template",
    "add_end_tokens",
    "check_layout",
    "convert",
    "convert_hf_to_mcore",
    "convert_mcore_to_hf",
    "copy_hf_files",
    "latest_iteration_dir",
    "read_checkpoint_info",
    "set_eos_token",
    "write_checkpoint_info",
]

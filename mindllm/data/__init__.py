"""What training reads: the batch type, batching, sampler, data sets, indexed files and tokenizer.

Names are loaded on first use, so that importing one part (the batch type, say) costs nothing of the others.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mindllm.data.datasets import Example as Example
    from mindllm.data.datasets import InstructionDataset as InstructionDataset
    from mindllm.data.datasets import Pair as Pair
    from mindllm.data.datasets import PairwiseDataset as PairwiseDataset
    from mindllm.data.datasets import Prompt as Prompt
    from mindllm.data.datasets import PromptDataset as PromptDataset
    from mindllm.data.datasets import open_instructions as open_instructions
    from mindllm.data.datasets import open_prompts as open_prompts
    from mindllm.data.manifest import read_template_record as read_template_record
    from mindllm.data.sampler import ResumableSampler as ResumableSampler
    from mindllm.data.tokenizer import chat_template_of as chat_template_of
    from mindllm.data.tokenizer import hash_tokenizer as hash_tokenizer
    from mindllm.data.tokenizer import load_tokenizer as load_tokenizer
    from mindllm.data.tokenizer import reads_alike as reads_alike
    from mindllm.data.tokenizer import stop_token_ids as stop_token_ids
    from mindllm.data.tokenizer import template_end_ids as template_end_ids

_HOME = {
    "Example": "datasets",
    "InstructionDataset": "datasets",
    "Pair": "datasets",
    "PairwiseDataset": "datasets",
    "Prompt": "datasets",
    "PromptDataset": "datasets",
    "open_instructions": "datasets",
    "open_prompts": "datasets",
    "read_template_record": "manifest",
    "ResumableSampler": "sampler",
    "chat_template_of": "tokenizer",
    "hash_tokenizer": "tokenizer",
    "load_tokenizer": "tokenizer",
    "reads_alike": "tokenizer",
    "stop_token_ids": "tokenizer",
    "template_end_ids": "tokenizer",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'mindllm.data' has no attribute '{name}'")
    return getattr(importlib.import_module(f"mindllm.data.{_HOME[name]}"), name)

"""GPTModel for post-training: the same layers, but logits only for the rows that are scored."""

from typing import Any, Literal

import mindllm.device  # noqa: F401  prepares the process for megatron-core

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor

from mindllm.models.attention import PackedRotaryEmbedding
from mindllm.models.packed import current_pack

Head = Literal["lm", "scalar"]


class ScalarHead(torch.nn.Linear):
    """hidden -> one number per row, without bias: the ``score`` layer of Hugging Face's sequence classifiers.

    Every tensor-parallel rank holds all of it, and computes the same from the same hidden states.
    """

    def __init__(self, hidden_size: int, dtype: torch.dtype) -> None:
        super().__init__(hidden_size, 1, bias=False, dtype=dtype)


class ScoringGPTModel(GPTModel):
    """A GPTModel whose last stage returns only the rows in the pack's ``score_index``.

    With head ``lm``: logits [scores, vocab / tp]; prompts need none, so neither their rows nor a second copy of the
    vocabulary ever exist. With head ``scalar``: [scores], one number per row.
    """

    def __init__(self, *args: Any, rotary: PackedRotaryEmbedding, head: Head = "lm", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rotary_pos_emb = rotary
        self.head = head
        if not self.post_process:
            return
        self._gather_before_output = self.config.sequence_parallel
        if head == "scalar":
            self.output_layer = ScalarHead(self.config.hidden_size, self.config.params_dtype)
        elif self._gather_before_output:
            # The rows are gathered here, before they are selected, and the gather's backward sums the partial
            # gradients; the output layer must then neither gather nor reduce again.
            self.output_layer.sequence_parallel = False
            self.output_layer.allreduce_dgrad = False
            self.output_layer.disable_grad_reduce = True

    def _postprocess(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Hidden states [tokens (/ tp under SP), 1, hidden] -> themselves, or the head's rows on the last stage."""
        if not self.post_process:
            return hidden_states
        if self._gather_before_output:
            # Behind the vocabulary's shards gradients are partial sums; behind a replicated head they are whole.
            hidden_states = gather_from_sequence_parallel_region(
                hidden_states, tensor_parallel_output_grad=self.head == "lm"
            )
        rows = current_pack().score_index
        if rows is not None:
            hidden_states = hidden_states.index_select(0, rows)
        if self.head == "scalar":
            return self.output_layer(hidden_states).flatten()
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        logits, _ = self.output_layer(hidden_states, weight=weight)
        return logits.squeeze(1)

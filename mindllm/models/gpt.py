"""GPTModel for post-training: the same layers, but logits only for the rows that are scored."""

from typing import Any

import mindllm.device  # noqa: F401  prepares the process for megatron-core

from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor

from mindllm.models.attention import PackedRotaryEmbedding
from mindllm.models.packed import current_pack


class ScoringGPTModel(GPTModel):
    """A GPTModel whose last stage returns logits [scores, vocab / tp] of the pack's ``score_index`` rows.

    Prompts need no logits, so neither their rows nor a second copy of the vocabulary ever exist.
    """

    def __init__(self, *args: Any, rotary: PackedRotaryEmbedding, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rotary_pos_emb = rotary
        if self.post_process:
            self._gather_before_output = self.config.sequence_parallel
            if self._gather_before_output:
                # The rows are gathered here, before they are selected, and the gather's backward sums the partial
                # gradients; the output layer must then neither gather nor reduce again.
                self.output_layer.sequence_parallel = False
                self.output_layer.allreduce_dgrad = False
                self.output_layer.disable_grad_reduce = True

    def _postprocess(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Hidden states [tokens (/ tp under SP), 1, hidden] -> themselves, or logits on the last stage."""
        if not self.post_process:
            return hidden_states
        if self._gather_before_output:
            hidden_states = gather_from_sequence_parallel_region(hidden_states, tensor_parallel_output_grad=True)
        rows = current_pack().score_index
        if rows is not None:
            hidden_states = hidden_states.index_select(0, rows)
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        logits, _ = self.output_layer(hidden_states, weight=weight)
        return logits.squeeze(1)

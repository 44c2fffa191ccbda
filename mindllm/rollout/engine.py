"""Generation over the very model chunks that train: continuous batching in every tensor and pipeline layout."""

from collections.abc import Callable
from dataclasses import dataclass, fields

from mindllm.device import current_device

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from torch import Tensor

from mindllm.data.sequences import FinishReason, Sequences
from mindllm.models.packed import PackedForward, packed_forward
from mindllm.parallel.groups import broadcast_from_last_stage
from mindllm.parallel.schedule import unwrap
from mindllm.rollout.kv_cache import DecodeStep, PrefillStep, SlotCache
from mindllm.rollout.sampler import SamplingParams, VocabParallelSampler
from mindllm.rollout.uniforms import token_uniforms


@dataclass
class GenerationStats:
    """Work done by one call; ``sampled_rows`` equals the number of response tokens: nothing runs after it finished."""

    prefill_tokens: int = 0
    sampled_rows: int = 0
    decode_steps: int = 0
    filler_rows: int = 0

    @classmethod
    def total(cls, parts: list["GenerationStats"]) -> "GenerationStats":
        """The work of several replicas added up."""
        return cls(**{field.name: sum(getattr(part, field.name) for part in parts) for field in fields(cls)})


class GenerationEngine:
    """Generates responses with a KV cache; finished sequences leave the batch at once and waiting ones take their slot.

    All ranks of a data-parallel replica run the same loop on the same state: only activations travel between stages,
    and the last stage's tokens travel back.
    """

    def __init__(
        self,
        chunks: list[torch.nn.Module],
        vocab_size: int,
        max_length: int,
        max_sequences: int,
        max_prefill_tokens: int,
    ) -> None:
        """
        Args:
            chunks: this rank's model chunks.
            vocab_size: true vocabulary size.
            max_length: bound on prompt plus response, in tokens.
            max_sequences: bound on the sequences decoded at the same time.
            max_prefill_tokens: bound on the prompt tokens of one prefill (one longer prompt runs alone).
        """
        self.chunks = [unwrap(chunk) for chunk in chunks]
        self.config = self.chunks[0].config
        self.vocab_size, self.max_length = vocab_size, max_length
        self.max_sequences, self.max_prefill_tokens = max_sequences, max_prefill_tokens

    @torch.no_grad()
    def generate(
        self, requests: Sequences, params: SamplingParams, report: Callable[[int], None] | None = None
    ) -> tuple[Sequences, GenerationStats]:
        """Complete every prompt of ``requests`` (responses empty, ``prompt_index`` and ``sample_index`` set).

        Args:
            requests: the prompts.
            params: how tokens are drawn.
            report: called with the number of finished responses whenever more have finished.

        Returns:
            The same sequences in the same order with responses, ``rollout_logprobs`` (full softmax at the temperature)
            and ``finish_reason``; and what it took.
        """
        modes = [chunk.training for chunk in self.chunks]
        for chunk in self.chunks:
            chunk.eval()
        try:
            return _Generation(self, requests, params).run(report or (lambda finished: None))
        finally:
            for chunk, mode in zip(self.chunks, modes, strict=True):
                chunk.train(mode)

    def forward(self, tokens: Tensor, pack: PackedForward) -> Tensor | None:
        """Run one pack through all pipeline stages; logits [scores, vocab / tp] on the last stage, None elsewhere.

        Args:
            tokens: [tokens] int64 on the device, a multiple of TP under sequence parallelism.
        """
        stages, group = mpu.get_pipeline_model_parallel_world_size(), mpu.get_pipeline_model_parallel_group()
        rows = tokens.shape[0] // (self.config.tensor_model_parallel_size if self.config.sequence_parallel else 1)
        output = None
        for chunk in self.chunks:
            if stages > 1 and not chunk.pre_process:
                hidden = torch.empty(
                    rows, 1, self.config.hidden_size, dtype=self.config.params_dtype, device=current_device()
                )
                dist.recv(hidden, mpu.get_pipeline_model_parallel_prev_rank(), group=group)
                chunk.set_input_tensor(hidden)
            with packed_forward(pack):
                output = chunk(tokens[None], pack.positions[None], None)
            if stages > 1 and not chunk.post_process:
                dist.send(output.contiguous(), mpu.get_pipeline_model_parallel_next_rank(), group=group)
        return output if self.chunks[-1].post_process else None


class _Generation:
    """State of one ``generate`` call. Slot s of the cache holds request ``slot_request[s]`` for s < active."""

    def __init__(self, engine: GenerationEngine, requests: Sequences, params: SamplingParams) -> None:
        self.engine, self.requests, self.params = engine, requests, params
        self.stats = GenerationStats()
        self.sampler = VocabParallelSampler(params, engine.vocab_size)
        self.prompts = [prompt for prompt, _ in requests.token_lists()]
        lengths = requests.prompt_lengths
        self.limits = (engine.max_length - lengths).clamp(0, params.max_new_tokens)
        total, longest = len(requests), int(self.limits.max()) if len(requests) else 0
        self.tokens = torch.zeros(total, longest, dtype=torch.int64)
        self.logprobs = torch.zeros(total, longest, dtype=torch.float32)
        self.counts = torch.zeros(total, dtype=torch.int64)
        self.finish = torch.full((total,), int(FinishReason.LENGTH), dtype=torch.int64)
        self.waiting = [request for request in range(total) if self.limits[request] > 0]
        num_slots = min(max(1, len(self.waiting)), engine.max_sequences)
        self.cache = SlotCache(num_slots, int((lengths + self.limits).max()) if total else 1)
        self.slot_request = torch.zeros(num_slots, dtype=torch.int64)
        self.active = 0
        self.stop_ids = torch.tensor(params.stop_token_ids, dtype=torch.int64)
        sequence_parallel = engine.config.sequence_parallel
        self.multiple = engine.config.tensor_model_parallel_size if sequence_parallel else 1

    def run(self, report: Callable[[int], None]) -> tuple[Sequences, GenerationStats]:
        reported = 0
        while self.waiting or self.active:
            while self._should_admit():
                self._prefill(self._next_group_of_requests())
            if self.active:
                self._decode()
            finished = len(self.requests) - len(self.waiting) - self.active
            if finished > reported:
                report(finished)
                reported = finished
        return self._result(), self.stats

    def _should_admit(self) -> bool:
        """Admit when a quarter of the slots is free: one prefill for many beats many small ones."""
        free = self.cache.num_slots - self.active
        return bool(self.waiting) and free >= min(len(self.waiting), max(1, self.cache.num_slots // 4))

    def _next_group_of_requests(self) -> list[int]:
        """Requests for the free slots whose distinct prompts fit the prefill budget; at least one."""
        free, budget = self.cache.num_slots - self.active, self.engine.max_prefill_tokens
        chosen: list[int] = []
        for request in self.waiting[:free]:
            if not chosen or not self._same_prompt(chosen[-1], request):
                budget -= len(self.prompts[request])
                if chosen and budget < 0:
                    break
            chosen.append(request)
        del self.waiting[: len(chosen)]
        return chosen

    def _same_prompt(self, one: int, other: int) -> bool:
        return self.prompts[one] == self.prompts[other]

    def _prefill(self, admitted: list[int]) -> None:
        """Run each distinct prompt once, fill the slots of all its requests and draw their first tokens."""
        segments: list[int] = []
        owner: list[int] = []
        for previous, request in zip([None, *admitted], admitted, strict=False):
            if previous is None or not self._same_prompt(previous, request):
                segments.append(request)
            owner.append(len(segments) - 1)
        lengths = [len(self.prompts[request]) for request in segments]
        starts = torch.tensor([0, *lengths]).cumsum(0)
        slots = torch.arange(self.active, self.active + len(admitted))
        rows = torch.cat([torch.arange(int(starts[o]), int(starts[o + 1])) for o in owner])
        positions = torch.cat([torch.arange(lengths[o]) for o in owner])
        writes = slots.repeat_interleave(torch.tensor([lengths[o] for o in owner]))

        flat = torch.tensor([token for request in segments for token in self.prompts[request]], dtype=torch.int64)
        filler = -len(flat) % self.multiple
        padded_lengths = [*lengths, filler] if filler else lengths
        device = current_device()
        step = PrefillStep(self.cache, padded_lengths, rows.to(device), writes.to(device), positions.to(device))
        all_positions = torch.cat([torch.arange(length) for length in padded_lengths])
        pack = PackedForward(all_positions.to(device), padded_lengths, (starts[1:] - 1).to(device), step)
        logits = self.engine.forward(torch.nn.functional.pad(flat, (0, filler)).to(device), pack)
        if logits is not None:
            logits = logits.index_select(0, torch.tensor(owner, device=device))
        self.slot_request[slots] = torch.tensor(admitted)
        self.active += len(admitted)
        self.stats.prefill_tokens += len(flat)
        self.stats.filler_rows += filler
        self._accept(slots, logits)

    def _decode(self) -> None:
        """One more token for every active slot."""
        requests = self.slot_request[: self.active]
        positions = self.requests.prompt_lengths[requests] + self.counts[requests] - 1
        last = self.tokens[requests, self.counts[requests] - 1]
        filler = -self.active % self.multiple
        device = current_device()
        positions = torch.nn.functional.pad(positions, (0, filler)).to(device)
        step = DecodeStep(self.cache, positions, self.active)
        pack = PackedForward(positions, [1] * len(positions), torch.arange(self.active, device=device), step)
        logits = self.engine.forward(torch.nn.functional.pad(last, (0, filler)).to(device), pack)
        self.stats.decode_steps += 1
        self.stats.filler_rows += filler
        self._accept(torch.arange(self.active), logits)

    def _accept(self, slots: Tensor, logits: Tensor | None) -> None:
        """Draw a token for each of ``slots``, record it, and let go of those that ended."""
        requests = self.slot_request[slots]
        position = self.counts[requests]
        tokens, logprobs = self._draw(requests, position, logits)
        self.tokens[requests, position] = tokens
        self.logprobs[requests, position] = logprobs
        self.counts[requests] += 1
        self.stats.sampled_rows += len(requests)
        stopped = torch.isin(tokens, self.stop_ids)
        self.finish[requests[stopped]] = int(FinishReason.STOP)
        ended = stopped | (self.counts[requests] >= self.limits[requests])
        for slot in slots[ended].flip(0).tolist():
            self._release(slot)

    def _draw(self, requests: Tensor, position: Tensor, logits: Tensor | None) -> tuple[Tensor, Tensor]:
        """Tokens and log-probs [rows] on the host, drawn on the last stage and known to all."""
        choice = torch.empty(2, len(requests), dtype=torch.float64, device=current_device())
        if logits is not None:
            uniforms = token_uniforms(
                self.params.seed,
                self.params.iteration,
                self.requests.prompt_index[requests].numpy(),
                self.requests.sample_index[requests].numpy(),
                position.numpy(),
            )
            no_stop = position < self.params.min_new_tokens
            device = current_device()
            choice = torch.stack(
                [
                    part.double()
                    for part in self.sampler.draw(logits, torch.from_numpy(uniforms).to(device), no_stop.to(device))
                ]
            )
        choice = broadcast_from_last_stage(choice).cpu()
        return choice[0].long(), choice[1].float()

    def _release(self, slot: int) -> None:
        """Free ``slot`` by moving the last active sequence into it."""
        self.active -= 1
        if slot != self.active:
            moved = int(self.slot_request[self.active])
            length = int(self.requests.prompt_lengths[moved] + self.counts[moved])
            self.cache.move(self.active, slot, min(length, self.cache.max_length))
            self.slot_request[slot] = moved

    def _result(self) -> Sequences:
        filled = torch.arange(self.tokens.shape[1]) < self.counts[:, None]
        responses = self.tokens[filled].split(self.counts.tolist())
        pieces = [
            piece
            for prompt, response in zip(self.prompts, responses, strict=True)
            for piece in (torch.tensor(prompt, dtype=torch.int64), response)
        ]
        return Sequences(
            tokens=torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.int64),
            prompt_lengths=self.requests.prompt_lengths,
            response_lengths=self.counts,
            prompt_index=self.requests.prompt_index,
            sample_index=self.requests.sample_index,
            finish_reason=self.finish,
            rollout_logprobs=self.logprobs[filled],
        )

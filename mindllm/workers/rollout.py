"""Separate generation ranks: a copy of the actor in a world of its own, renewed by name before it generates."""

from pathlib import Path

from mindllm.device import current_device

import torch
from torch import Tensor

from mindllm.config import ActorConfig
from mindllm.data.sequences import Sequences
from mindllm.parallel.groups import coordinates
from mindllm.parallel.weights import checksum, gather_full, named_parameters, slice_full
from mindllm.rollout import GenerationEngine, GenerationStats, SamplingParams
from mindllm.workers.group import WorkerGroup
from mindllm.workers.model import ModelWorker

BUCKET_BYTES = 256 << 20
"""Bound on the weights in flight: the driver and every receiver hold one bucket at a time."""

DEFAULT_CONCURRENT_SEQUENCES = 256


def concurrent_sequences(config: ActorConfig) -> int:
    """Sequences a replica decodes at the same time."""
    chosen = config.num_samples_per_step or DEFAULT_CONCURRENT_SEQUENCES
    if config.max_kv_tokens is not None:
        chosen = min(chosen, config.max_kv_tokens // config.seq_length)
    return max(1, chosen)


def make_engine(worker: ModelWorker, config: ActorConfig) -> GenerationEngine:
    """The generation engine over a worker's own chunks."""
    return GenerationEngine(
        worker.chunks,
        worker.vocab_size,
        max_length=config.seq_length,
        max_sequences=concurrent_sequences(config),
        max_prefill_tokens=config.max_tokens_per_micro_batch,
    )


class WeightSource:
    """On a training rank: the actor's weights in buckets of whole tensors."""

    def __init__(self, worker: ModelWorker) -> None:
        self._worker = worker
        self._buckets: list[list[tuple[str, torch.nn.Parameter]]] = [[]]
        size = 0
        for name, parameter in named_parameters(worker.chunks):
            tensor_bytes = parameter.numel() * parameter.element_size() * worker.layout.tensor
            if self._buckets[-1] and size + tensor_bytes > BUCKET_BYTES:
                self._buckets.append([])
                size = 0
            self._buckets[-1].append((name, parameter))
            size += tensor_bytes

    def count(self) -> int:
        """Buckets of this pipeline stage."""
        return len(self._buckets)

    def bucket(self, number: int) -> dict[str, Tensor] | None:
        """Whole tensors by name on the host, on TP rank 0 of DP rank 0; all TP ranks take part. {} past the end."""
        members = self._buckets[number] if number < len(self._buckets) else []
        full = {name: gather_full(name, parameter, self._worker.vocab_size) for name, parameter in members}
        place = coordinates()
        if place.tensor_rank or place.data_rank:
            return None
        return {name: tensor.cpu() for name, tensor in full.items()}


class RolloutWorker(ModelWorker):
    """One generation rank: a shard of the actor under the inference layout, without gradients or optimizer."""

    def __init__(self, config: ActorConfig, checkpoint: Path) -> None:
        """``config`` already describes the inference layout; see ``inference_config``."""
        super().__init__(config, checkpoint, head="lm")
        self.engine = make_engine(self, config)
        self._parameters = dict(named_parameters(self.chunks))

    @torch.no_grad()
    def load_weights(self, tensors: dict[str, Tensor]) -> None:
        """Take this rank's part of whole tensors."""
        for name, full in tensors.items():
            parameter = self._parameters[name]
            parameter.copy_(slice_full(name, full.to(current_device()), parameter))

    def checksums(self) -> dict[str, int]:
        """CRC-32 of every whole tensor as this world holds it (all TP ranks take part)."""
        return {n: checksum(gather_full(n, p, self.vocab_size)) for n, p in self._parameters.items()}

    def generate(self, requests: Sequences, params: SamplingParams) -> tuple[Sequences, GenerationStats] | None:
        """See ``ActorRolloutWorker.generate``."""
        result = self.engine.generate(requests, params, self.report)
        return result if coordinates().is_collector else None


def inference_config(config: ActorConfig) -> ActorConfig:
    """The actor's keys with the layout of its generation ranks."""
    return config.model_copy(
        update={
            "tensor_model_parallel_size": config.inference_tensor_model_parallel_size,
            "pipeline_model_parallel_size": 1,
            "num_layers_per_virtual_pipeline_stage": None,
            "sequence_parallel": False,
        }
    )


class WeightSync:
    """Carries the actor's weights to the generation ranks, bucket by bucket."""

    def __init__(self, training: WorkerGroup, generation: WorkerGroup) -> None:
        self._training, self._generation = training, generation
        self._buckets = max(training.call_ranks("weight_buckets"))

    def run(self, verify: bool) -> None:
        """Copy all weights.

        Args:
            verify: compare a checksum of every whole tensor at both ends.

        Raises:
            RuntimeError: a tensor arrived changed, or did not arrive.
        """
        sent: dict[str, int] = {}
        for number in range(self._buckets):
            answers = self._training.call_ranks("weight_bucket", number)
            tensors = {name: tensor for part in answers if part for name, tensor in part.items()}
            self._generation.call_all("load_weights", self._generation.put(tensors))
            if verify:
                sent |= {name: checksum(tensor) for name, tensor in tensors.items()}
        if verify:
            for received in self._generation.call_ranks("checksums"):
                wrong = sorted(name for name in sent.keys() | received.keys() if sent.get(name) != received.get(name))
                if wrong:
                    raise RuntimeError(f"weight sync: {len(wrong)} tensors differ after the copy, e.g. {wrong[0]}")

"""Separate generation ranks hold the weights of the training ranks, whatever both layouts are."""

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from mindllm.data.sequences import Sequences
from mindllm.models.builder import Layout
from mindllm.parallel.weights import checksum, gather_full, named_parameters, slice_full
from mindllm.rollout import SamplingParams
from mindllm.workers import rollout
from mindllm.workers.rollout import RolloutWorker, WeightSource, WeightSync, inference_config
from tests.distributed import ranks
from tests.distributed.models import TinyModel
from tests.distributed.pool import run_ranks
from tests.distributed.reference import Adam, make_batch

GREEDY = SamplingParams(
    do_sample=False,
    temperature=1.0,
    top_k=-1,
    top_p=1.0,
    max_new_tokens=12,
    min_new_tokens=0,
    stop_token_ids=(),
    seed=0,
    iteration=1,
)
SMALL_BUCKET = 40_000  # bytes: less than the embedding alone, more than several small tensors together
BOLD = Adam(lr=0.05, clip_grad=0.0)  # a step that changes what is generated


def make_requests(model: TinyModel) -> Sequences:
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(model.vocab_size, (length,), generator=generator).tolist() for length in (1, 5, 9, 20, 33)]
    requests = Sequences.from_lists(prompts, [[] for _ in prompts])
    requests.prompt_index, requests.sample_index = torch.arange(len(prompts)), torch.zeros(len(prompts), dtype=int)
    return requests


def round_trip_on_rank(models: list[TinyModel], layout: Layout) -> list[dict[str, Tensor]]:
    """Per model: whole tensors by name; each is checked to give this rank's part back, bit for bit."""
    results = []
    for model in models:
        worker = ranks.make_worker(model, ranks.actor_config(layout))
        full = {}
        for name, parameter in named_parameters(worker.chunks):
            full[name] = gather_full(name, parameter, worker.vocab_size).clone()
            assert torch.equal(slice_full(name, full[name], parameter), parameter), name
        results.append(full)
    return results


@pytest.fixture(scope="module")
def whole(models: dict[str, TinyModel]) -> list[dict[str, Tensor]]:
    (answer,) = run_ranks(ranks.TP1, 1, round_trip_on_rank, list(models.values()), ranks.TP1)
    return answer


@pytest.mark.parametrize("layout", [ranks.TP2, ranks.PP2, ranks.TP2_PP2, ranks.PP2_VPP2])
def test_gathering_and_slicing_undo_each_other(
    layout: Layout, models: dict[str, TinyModel], whole: list[dict[str, Tensor]]
) -> None:
    assert any(model.vocab_size % 2 for model in models.values())  # one that TP2 has to pad
    answers = run_ranks(layout, 1, round_trip_on_rank, list(models.values()), layout)
    for number, expected in enumerate(whole):
        for name, tensor in expected.items():
            held = [answer[number][name] for answer in answers if name in answer[number]]
            assert held, f"no rank has {name}"
            assert all(torch.equal(part, tensor) for part in held), name
        assert set().union(*(answer[number] for answer in answers)) == set(expected)


def training_on_rank(model: TinyModel, batch: Sequences, layout: Layout) -> list[tuple[Sequences, list[Any]]]:
    """Greedy responses and weight buckets, before and after an update."""
    rollout.BUCKET_BYTES = SMALL_BUCKET
    config = ranks.actor_config(layout, BOLD)
    worker = ranks.make_worker(model, config)
    results = []
    for _ in range(2):
        responses, _ = worker.engine.generate(make_requests(model), GREEDY)
        # The driver asks every rank for as many buckets as the fullest stage has. What it gets is a copy because it
        # comes from another process: on a CPU a bucket is a view of the weights.
        buckets = [worker.weight_bucket(number) for number in range(worker.weight_buckets() + 2)]
        results.append((responses, copy.deepcopy(buckets)))
        worker.update(ranks.share_of(batch, config), ranks.objective("sft", batch))
    return results


def generation_on_rank(
    model: TinyModel, buckets: list[list[dict[str, Tensor]]], tensor: int
) -> list[tuple[Sequences, dict[str, int]]]:
    """Greedy responses after each set of buckets, and the checksums; the checkpoint's own weights are lost first."""
    config = inference_config(ranks.actor_config(ranks.PP2, inference_tensor_model_parallel_size=tensor))
    worker = RolloutWorker(config, model.checkpoint)
    with torch.no_grad():
        for parameter in worker.chunks[0].parameters():
            parameter.fill_(torch.nan)
    results = []
    for weights in buckets:
        for bucket in weights:
            worker.load_weights(bucket)
        responses, _ = worker.engine.generate(make_requests(model), GREEDY)
        results.append((responses, worker.checksums()))
    return results


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("training", "data_parallel", "generation"),
    [
        pytest.param(ranks.TP2, 1, 1, id="tp2-to-tp1"),
        pytest.param(ranks.PP2, 1, 2, id="pp2-to-tp2"),
        pytest.param(ranks.TP1, 2, 1, id="dp2-to-tp1"),
        pytest.param(ranks.TP2, 1, 4, id="tp2-to-tp4"),
        pytest.param(ranks.TP4, 1, 2, id="tp4-to-tp2", marks=pytest.mark.slow),
    ],
)
def test_generation_ranks_give_the_tokens_that_training_ranks_would(
    training: Layout, data_parallel: int, generation: int, name: str, models: dict[str, TinyModel]
) -> None:
    model = models[name]
    answers = run_ranks(training, data_parallel, training_on_rank, model, make_batch(model), training)
    buckets: list[list[dict[str, Tensor]]] = []
    for time in range(2):
        parts = [[bucket for bucket in answer[time][1] if bucket] for answer in answers]
        assert all(len(part) > 1 for part in parts if part)  # several buckets a stage
        assert sum(bool(part) for part in parts) == training.pipeline  # one rank of each stage sends
        buckets.append([bucket for part in parts for bucket in part])
        names = [key for bucket in buckets[-1] for key in bucket]
        assert len(names) == len(set(names))
        for bucket in buckets[-1]:
            size = sum(tensor.numel() * tensor.element_size() for tensor in bucket.values())
            assert len(bucket) == 1 or size <= SMALL_BUCKET
    generated = run_ranks(Layout(tensor=generation), 1, generation_on_rank, model, buckets, generation)
    for time in range(2):
        sent = {key: checksum(tensor) for bucket in buckets[time] for key, tensor in bucket.items()}
        expected = answers[-1][time][0].token_lists()
        for answer in generated:
            assert answer[time][0].token_lists() == expected
            assert answer[time][1] == sent
    before, after = (generated[0][time][0].token_lists() for time in range(2))
    assert before != after, "the update changed nothing that is generated"


def buckets_on_rank(model: TinyModel) -> list[tuple[int, list[dict[str, Tensor] | None]]]:
    worker = ranks.make_worker(model, ranks.actor_config(ranks.TP1))
    results = []
    for size in (1, SMALL_BUCKET, 1 << 30):
        rollout.BUCKET_BYTES = size
        source = WeightSource(worker)
        results.append((source.count(), [source.bucket(number) for number in range(source.count() + 1)]))
    return results


def test_buckets_are_as_small_as_they_are_told_to_be(models: dict[str, TinyModel]) -> None:
    (answer,) = run_ranks(ranks.TP1, 1, buckets_on_rank, models["qwen2"])
    single, small, one = answer
    assert one[0] == 1 and 1 < small[0] < single[0] == len(one[1][0])
    assert all(len(bucket) == 1 for bucket in single[1][:-1])
    assert single[1][-1] == small[1][-1] == one[1][-1] == {}  # past the end, as asked for by a longer stage


@dataclass
class Trainer:
    """A group of two pipeline stages whose weights are given; the second has fewer buckets."""

    stages: list[list[dict[str, Tensor]]]
    calls: list[int] = field(default_factory=list)

    def call_ranks(self, method: str, *arguments: int) -> list[Any]:
        if method == "weight_buckets":
            return [len(stage) for stage in self.stages] + [len(self.stages[0])]
        assert method == "weight_bucket"
        (number,) = arguments
        self.calls.append(number)
        return [stage[number] if number < len(stage) else {} for stage in self.stages] + [None]  # None: TP rank 1


@dataclass
class Generator:
    """A group of two ranks that loses, changes or keeps what it is sent."""

    fault: str = ""
    held: dict[str, Tensor] = field(default_factory=dict)
    most_in_flight: int = 0
    checksums_asked: int = 0

    def put(self, value: Any) -> Any:
        return value

    def call_all(self, method: str, tensors: dict[str, Tensor]) -> None:
        assert method == "load_weights"
        self.most_in_flight = max(self.most_in_flight, len(tensors))
        for name, tensor in tensors.items():
            if not (self.fault == "lost" and name == "b"):
                self.held[name] = tensor + 1e-6 if self.fault == "changed" and name == "b" else tensor.clone()

    def call_ranks(self, method: str) -> list[dict[str, int]]:
        assert method == "checksums"
        self.checksums_asked += 1
        sums = {name: checksum(tensor) for name, tensor in self.held.items()}
        return [sums, sums]


def stages() -> list[list[dict[str, Tensor]]]:
    return [[{"a": torch.ones(3)}, {"b": torch.arange(4.0)}], [{"c": torch.zeros(2)}]]


def test_every_bucket_of_every_stage_is_carried_once() -> None:
    trainer, generator = Trainer(stages()), Generator()
    WeightSync(trainer, generator).run(verify=True)
    assert trainer.calls == [0, 1]
    assert set(generator.held) == {"a", "b", "c"} and generator.most_in_flight == 2
    WeightSync(trainer, generator).run(verify=False)
    assert generator.checksums_asked == 1


@pytest.mark.parametrize("fault", ["lost", "changed"])
def test_a_tensor_that_did_not_arrive_as_it_was_sent_is_named(fault: str) -> None:
    sync = WeightSync(Trainer(stages()), Generator(fault))
    with pytest.raises(RuntimeError, match="1 tensors differ after the copy, e.g. b"):
        sync.run(verify=True)
    sync.run(verify=False)  # nobody looks


def test_a_generation_world_with_a_tensor_of_its_own_is_noticed() -> None:
    generator = Generator(held={"d": torch.ones(1)})
    with pytest.raises(RuntimeError, match="1 tensors differ after the copy, e.g. d"):
        WeightSync(Trainer(stages()), generator).run(verify=True)

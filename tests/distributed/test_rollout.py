"""Generation from the sharded model: greedy and sampled tokens, log-probs, limits, and what a rank holds meanwhile."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mindllm.data.sequences import FinishReason, Sequences
from mindllm.models.builder import Layout
from mindllm.models.families import Architecture
from mindllm.parallel.groups import coordinates
from mindllm.parallel.schedule import unwrap
from mindllm.rollout import GenerationEngine, SamplingParams
from mindllm.rollout.kv_cache import DecodeStep
from mindllm.workers.actor_rollout import ActorRolloutWorker
from mindllm.workers.dispatch import Share, divide_requests
from tests.distributed import ranks
from tests.distributed.models import TinyModel
from tests.distributed.pool import run_ranks
from tests.distributed.reference import TEMPERATURE, response_logprobs
from tests.distributed.sampling_reference import Verdict, check_tokens

LIMIT = 16  # new tokens
SAMPLES = 3
FEW_SLOTS = 7
PROMPT_LENGTHS = (5, 1, 17, ranks.SEQ_LENGTH, 11, ranks.SEQ_LENGTH - 1, 5, 30, 9)

BASE = SamplingParams(
    do_sample=True,
    temperature=TEMPERATURE,
    top_k=-1,
    top_p=1.0,
    max_new_tokens=LIMIT,
    min_new_tokens=0,
    stop_token_ids=(0, 17, 31, 52, 63, 77, 99, 100, 126, 143, 160, 181, 198),
    seed=5,
    iteration=3,
)
SAMPLED = {
    "plain": {},
    "top-k": {"top_k": 7},
    "top-p": {"top_p": 0.8},
    "both": {"top_k": 20, "top_p": 0.7, "temperature": 1.3},
    "min-new-tokens": {"min_new_tokens": 6},
    "all": {"top_k": 12, "top_p": 0.9, "min_new_tokens": 4},
}
CASES = {
    "greedy": dataclasses.replace(BASE, do_sample=False),
    "greedy-min-new-tokens": dataclasses.replace(BASE, do_sample=False, min_new_tokens=7),
    **{name: dataclasses.replace(BASE, **changes) for name, changes in SAMPLED.items()},
}
FAMILIES = ("qwen2", "qwen3")
LAYOUTS = {
    "tp1": (ranks.TP1, 1),
    "dp2": (ranks.TP1, 2),
    "tp2": (ranks.TP2, 1),
    "pp2": (ranks.PP2, 1),
    "tp2-pp2": (ranks.TP2_PP2, 1),
    "pp2-vpp2": (ranks.PP2_VPP2, 1),
    "tp2-sp": (ranks.TP2_SP, 1),
    "tp4": (ranks.TP4, 1),
}


def make_requests(vocab_size: int) -> Sequences:
    """Mixed prompt lengths with three samples each; one prompt fills the window, one leaves a single token."""
    generator = torch.Generator().manual_seed(11)
    prompts = [torch.randint(vocab_size, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]
    repeated = [prompt for prompt in prompts for _ in range(SAMPLES)]
    requests = Sequences.from_lists(repeated, [[] for _ in repeated])
    requests.prompt_index = torch.arange(len(prompts)).repeat_interleave(SAMPLES) * 10
    requests.sample_index = torch.arange(SAMPLES).repeat(len(prompts))
    return requests


class _FullMatrices(TorchDispatchMode):
    """Records every operation whose result has the shape of a whole weight matrix."""

    def __init__(self, shapes: set[tuple[int, ...]]) -> None:
        super().__init__()
        self.shapes, self.found = shapes, []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor) and tuple(value.shape) in self.shapes:
                self.found.append((str(function), tuple(value.shape)))
        return result


def expected_shapes(arch: Architecture, tensor: int, padded_vocab: int) -> dict[str, tuple[int, ...]]:
    """Parameter name ending -> its shape when split over ``tensor`` ranks."""
    query, kv = arch.num_attention_heads * arch.head_dim, arch.num_query_groups * arch.head_dim
    return {
        "word_embeddings.weight": (padded_vocab // tensor, arch.hidden_size),
        "output_layer.weight": (padded_vocab // tensor, arch.hidden_size),
        "linear_qkv.weight": ((query + 2 * kv) // tensor, arch.hidden_size),
        "linear_qkv.bias": ((query + 2 * kv) // tensor,),
        "linear_proj.weight": (arch.hidden_size, query // tensor),
        "linear_fc1.weight": (2 * arch.ffn_hidden_size // tensor, arch.hidden_size),
        "linear_fc2.weight": (arch.hidden_size, arch.ffn_hidden_size // tensor),
    }


def check_own_shard_only(worker: ActorRolloutWorker, model: TinyModel, requests: Sequences) -> None:
    """At every forward of a generation the rank holds its own part of each weight, and nothing becomes a whole one."""
    layout, arch = worker.layout, model.arch
    padded = -(-arch.vocab_size // layout.tensor) * layout.tensor
    own = expected_shapes(arch, layout.tensor, padded)
    whole = expected_shapes(arch, 1, padded)
    seen = 0

    def check(module: torch.nn.Module, _: Any) -> None:
        nonlocal seen
        for name, parameter in module.named_parameters():
            ending = next((ending for ending in own if name.endswith(ending)), None)
            if ending is None:
                assert "norm" in name, name
            else:
                assert tuple(parameter.shape) == own[ending], name
                seen += 1

    layers = sum(len(unwrap(chunk).decoder.layers) for chunk in worker.chunks)
    assert layers == arch.num_layers // layout.pipeline
    hooks = [unwrap(chunk).register_forward_pre_hook(check) for chunk in worker.chunks]
    # A part of fc1, transposed, looks like a whole fc2, and a part of qkv like a whole proj; these do not.
    unmistakable = {whole[name] for name in ("word_embeddings.weight", "linear_qkv.weight", "linear_fc1.weight")}
    recorder = _FullMatrices(unmistakable if layout.tensor > 1 else set())
    with recorder:
        worker.engine.generate(requests, dataclasses.replace(BASE, max_new_tokens=3))
    for hook in hooks:
        hook.remove()
    assert seen and not recorder.found, recorder.found


def count_decoded_rows(engine: GenerationEngine) -> list[int]:
    """Make ``engine`` count the rows of every decode step, filler left out, in the list returned."""
    rows: list[int] = []
    forward = engine.forward

    def counting(tokens: Tensor, pack: Any) -> Any:
        if isinstance(pack.cache, DecodeStep):
            assert len(tokens) - pack.cache.num_rows < 2  # filler is at most tp - 1 rows
            rows.append(pack.cache.num_rows)
        return forward(tokens, pack)

    engine.forward = counting  # type: ignore[method-assign]
    return rows


def rollouts_on_rank(model: TinyModel, layout: Layout, slots: int | None, case_names: list[str]) -> Any:
    """Every case's sequences of this replica (None on ranks that do not answer), with what else was checked here."""
    config = ranks.actor_config(layout, num_samples_per_step=slots, max_tokens_per_micro_batch=40)
    worker = ranks.make_worker(model, config)
    rows = count_decoded_rows(worker.engine)
    requests = make_requests(model.vocab_size)
    place = coordinates()
    members = divide_requests(requests, place.data_size)[place.data_rank]
    mine = requests.select(members)
    outputs = {}
    for name in case_names:
        rows.clear()
        reported: list[int] = []
        worker.report = reported.append
        result = worker.generate(mine, CASES[name])
        assert reported == sorted(set(reported)) and reported[-1:] in ([len(mine)], [])
        assert (result is not None) == place.is_collector
        if result is None:
            continue
        sequences, stats = result
        assert stats.sampled_rows == sequences.num_response_tokens
        # The first token of a response comes from its prompt; every other one from a row of its own, and no more.
        assert sum(rows) == sequences.num_response_tokens - int((sequences.response_lengths > 0).sum())
        assert max(rows) <= (slots or len(mine))
        outputs[name] = (members, sequences)
    check_own_shard_only(worker, model, mine)
    return outputs, on_policy_deviation(worker, mine)


def on_policy_deviation(worker: ActorRolloutWorker, requests: Sequences) -> tuple[float, float] | None:
    """Largest |ratio - 1| between rollout and scoring log-probs, and what the first update reports."""
    sequences, _ = worker.engine.generate(requests, BASE)
    sequences.old_logprobs = sequences.rollout_logprobs
    sequences.ref_logprobs = sequences.rollout_logprobs
    sequences.advantages = torch.ones(sequences.num_response_tokens)
    sequences.loss_mask = torch.ones(sequences.num_response_tokens, dtype=torch.bool)
    half = len(sequences) // 2
    share = Share(sequences, [half, len(sequences) - half])
    scored = worker.logprobs(share, TEMPERATURE)
    answer = worker.update(share, ranks.objective("grpo", sequences))
    if answer is None:
        return None
    ratio = (scored.double() - sequences.rollout_logprobs.double()).exp()
    return float((ratio - 1).abs().max()), answer[0]["ratio_deviation_max"]


def collect(answers: list[Any], total: int) -> dict[str, Sequences]:
    """The replicas' sequences of each case in the order of the requests."""
    collected = {}
    for name in next(outputs for outputs, _ in answers if outputs):
        parts = [outputs[name] for outputs, _ in answers if outputs]
        order = torch.tensor([index for members, _ in parts for index in members])
        assert sorted(order.tolist()) == list(range(total))
        collected[name] = Sequences.concatenate([sequences for _, sequences in parts]).select(order.argsort())
    return collected


@pytest.fixture(scope="module")
def baseline(models: dict[str, TinyModel]) -> dict[str, dict[str, Sequences]]:
    """TP1 with as many slots as requests, by model and case."""
    results = {}
    for name in FAMILIES:
        answers = run_ranks(ranks.TP1, 1, rollouts_on_rank, models[name], ranks.TP1, None, list(CASES))
        results[name] = collect(answers, SAMPLES * len(PROMPT_LENGTHS))
    return results


@pytest.fixture(scope="module")
def hf_greedy(models: dict[str, TinyModel]) -> dict[Any, list[list[int]]]:
    """Responses of ``transformers``' own generate per prompt, by (model, case)."""
    results = {}
    for name in FAMILIES:
        prompts = [prompt for prompt, _ in make_requests(models[name].vocab_size).token_lists()][::SAMPLES]
        for case in ("greedy", "greedy-min-new-tokens"):
            results[name, case] = [_hf_generate(models[name], prompt, CASES[case]) for prompt in prompts]
    return results


def _hf_generate(model: TinyModel, prompt: list[int], params: SamplingParams) -> list[int]:
    room = min(params.max_new_tokens, ranks.SEQ_LENGTH - len(prompt))
    if room == 0:
        return []
    output = model.hf.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        do_sample=False,
        max_new_tokens=room,
        min_new_tokens=min(params.min_new_tokens, room),
        eos_token_id=list(params.stop_token_ids),
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


def check_case(model: TinyModel, name: str, sequences: Sequences) -> Verdict:
    """Everything a result must satisfy by itself, against transformers."""
    params = CASES[name]
    requests = make_requests(model.vocab_size)
    assert torch.equal(sequences.prompt_lengths, requests.prompt_lengths)
    assert torch.equal(sequences.prompt_index, requests.prompt_index)
    assert torch.equal(sequences.sample_index, requests.sample_index)
    reasons = sequences.finish_reason.tolist()
    asked = requests.token_lists()
    for (prompt, response), (wanted, _), reason in zip(sequences.token_lists(), asked, reasons, strict=True):
        assert prompt == wanted
        room = min(LIMIT, ranks.SEQ_LENGTH - len(prompt))
        stops = [position for position, token in enumerate(response) if token in params.stop_token_ids]
        if reason == FinishReason.STOP:
            assert stops == [len(response) - 1] and len(response) > min(params.min_new_tokens, room)
        else:
            assert not stops and len(response) == room
    with torch.no_grad():
        logprobs, _ = response_logprobs(model.hf, sequences, params.temperature)
    torch.testing.assert_close(sequences.rollout_logprobs, logprobs, rtol=0, atol=1e-5)
    return check_tokens(model.hf, sequences, params) if params.do_sample else Verdict()


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_every_sampled_token_is_the_one_its_uniform_number_picks(
    name: str, models: dict[str, TinyModel], baseline: dict[str, dict[str, Sequences]]
) -> None:
    for case in CASES:
        verdict = check_case(models[name], case, baseline[name][case])
        assert verdict.excused <= 1, f"{case}: {verdict}"
    plain = baseline[name]["plain"]
    lengths = plain.response_lengths.view(-1, SAMPLES)
    assert not bool(lengths[PROMPT_LENGTHS.index(ranks.SEQ_LENGTH)].any()), "a prompt that fills the window"
    ends = {response[-1] for _, response in plain.token_lists() if response} & set(BASE.stop_token_ids)
    assert len(ends) >= 2, "more than one end token should have occurred"
    assert {int(FinishReason.STOP), int(FinishReason.LENGTH)} == set(plain.finish_reason.tolist())
    early = min(len(response) for prompt, response in plain.token_lists() if len(prompt) < 30)
    assert early < CASES["min-new-tokens"].min_new_tokens, "the minimum length should have mattered"


def assert_same_up_to_edges(model: TinyModel, case: str, ours: Sequences, reference: Sequences) -> None:
    """Equal tokens, or a first difference that sits on an edge of the CDF (which ``check_case`` verified)."""
    verdict = check_case(model, case, ours)
    differing = sum(a != b for a, b in zip(ours.token_lists(), reference.token_lists(), strict=True))
    assert differing <= verdict.excused <= 1, f"{case}: {differing} sequences differ, {verdict}"


def check_layout(
    model: TinyModel, answers: list[Any], baseline: dict[str, Sequences], greedy: dict[Any, list[list[int]]]
) -> None:
    results = collect(answers, SAMPLES * len(PROMPT_LENGTHS))
    for case, sequences in results.items():
        assert_same_up_to_edges(model, case, sequences, baseline[case])
        if (model.name, case) in greedy:
            responses = [response for _, response in sequences.token_lists()]
            for sample in range(SAMPLES):
                assert responses[sample::SAMPLES] == greedy[model.name, case]
    for _, deviation in answers:
        assert deviation is None or max(deviation) <= 1e-5, deviation


# Every layout meets both models (qwen3's embeddings are tied), few slots and many, and several kinds of sampling.
COMBINATIONS = [
    ("tp1", "qwen2", FEW_SLOTS, ["greedy", "top-p", "all"]),
    ("dp2", "qwen3", FEW_SLOTS, ["greedy", "plain", "min-new-tokens"]),
    ("tp2", "qwen2", FEW_SLOTS, ["greedy", "plain", "all"]),
    ("pp2", "qwen3", 1, ["plain"]),
    ("tp2-pp2", "qwen3", FEW_SLOTS, ["greedy", "both"]),
    ("pp2-vpp2", "qwen2", FEW_SLOTS, ["greedy-min-new-tokens", "plain", "top-k"]),
    ("tp2-sp", "qwen3", FEW_SLOTS, ["greedy", "top-p"]),
]
MORE_COMBINATIONS = [
    ("tp1", "qwen3", FEW_SLOTS, ["greedy-min-new-tokens", "top-k", "both", "min-new-tokens"]),
    ("dp2", "qwen2", None, ["greedy", "top-k", "all"]),
    ("tp2", "qwen3", None, ["greedy-min-new-tokens", "top-p", "both"]),
    ("pp2", "qwen2", FEW_SLOTS, ["greedy", "top-p", "all"]),
    ("tp2-pp2", "qwen2", None, ["plain", "top-k", "all"]),
    ("pp2-vpp2", "qwen3", None, ["greedy", "top-p", "min-new-tokens"]),
    ("tp2-sp", "qwen2", None, ["plain", "min-new-tokens", "all"]),
    ("tp4", "qwen2", None, ["greedy", "top-p"]),
    ("tp4", "qwen3", FEW_SLOTS, ["greedy"]),
]


@pytest.mark.parametrize(
    ("name", "family", "slots", "cases"),
    [*COMBINATIONS, *(pytest.param(*more, marks=pytest.mark.slow) for more in MORE_COMBINATIONS)],
)
def test_tokens_equal_those_of_hugging_face_and_of_every_other_layout(
    name: str,
    family: str,
    slots: int | None,
    cases: list[str],
    models: dict[str, TinyModel],
    baseline: dict[str, dict[str, Sequences]],
    hf_greedy: dict[Any, list[list[int]]],
) -> None:
    layout, data_parallel = LAYOUTS[name]
    answers = run_ranks(layout, data_parallel, rollouts_on_rank, models[family], layout, slots, cases)
    check_layout(models[family], answers, baseline[family], hf_greedy)


def test_every_layout_meets_every_kind_of_sampling_on_some_model() -> None:
    met = {(name, case) for name, _, _, cases in (*COMBINATIONS, *MORE_COMBINATIONS) for case in cases}
    assert {name for name, _ in met} == set(LAYOUTS) and {case for _, case in met} == set(CASES)
    for name in LAYOUTS:
        assert {family for layout, family, *_ in (*COMBINATIONS, *MORE_COMBINATIONS) if layout == name} == set(FAMILIES)

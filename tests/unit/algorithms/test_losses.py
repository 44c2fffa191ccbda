import pytest
import torch

from mindllm.algorithms import kl_loss, masked_sum, policy_loss, sft_loss, token_weights
from tests.vectors import assert_close, load_cases, tensor

LEFT_OUT = {
    "pg_nemo_reinforce": "no ratio",
    "pg_megatron_rl": "adds an entropy term of the sampled token only",
}
CASES = [case for case in load_cases("policy_loss") if case["id"] not in LEFT_OUT]
AGGREGATION_OF_TRL = {"grpo": "seq-mean-token-mean", "dr_grpo": "seq-mean-token-sum-norm"}


def _flat(rows: list) -> torch.Tensor:
    return tensor(rows).flatten()


def _clips(inputs: dict) -> dict[str, float | None]:
    """Read the clip widths under the names that each source gives them."""
    named = inputs | inputs.get("config", {})

    def first(names: list[str], default: float | None) -> float | None:
        return next((named[name] for name in names if name in named), default)

    low = first(["clip_low", "clip_eps_low", "eps_low", "eps_clip"], 0.2)
    high = first(["clip_high", "clip_eps_high", "eps_high", "eps_clip_higher"], low)
    dual = first(["dual_clip_c", "dual_clip", "delta", "c_clip"], None)
    return {"clip_low": low, "clip_high": high, "dual_clip": dual}


def _advantages(inputs: dict) -> torch.Tensor:
    if "advantages" in inputs:
        return _flat(inputs["advantages"])
    width = len(inputs["mask"][0])
    return tensor(inputs["advantages_per_seq"]).repeat_interleave(width)


def _aggregation(inputs: dict) -> str:
    if not inputs.get("config", {}).get("token_level_loss", True):
        return "seq-mean-token-mean"
    return inputs.get("agg") or AGGREGATION_OF_TRL.get(inputs.get("loss_type"), "token-mean")


def _weights(inputs: dict, mask: torch.Tensor) -> torch.Tensor | None:
    """None for the token mean; else the weights, in a batch of as many sequences as the source counted."""
    aggregation = _aggregation(inputs)
    if aggregation == "token-mean":
        return None
    rows, width = len(inputs["mask"]), len(inputs["mask"][0])
    copies = inputs.get("global_batch_size", rows) // rows
    longest = inputs.get("loss_scale_factor") or inputs.get("max_completion_length") or width
    lengths = torch.full((rows * copies,), width)
    return token_weights(mask.repeat(copies), lengths, aggregation, longest)[: len(mask)]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_policy_loss_gradient_and_metrics_equal_the_recorded_ones(case):
    inputs, expected = case["inputs"], case["expected"]
    logprobs = _flat(inputs["new_logprobs"]).requires_grad_()
    mask = _flat(inputs["mask"]).bool()
    denominator = inputs.get("batch_num_tokens") or inputs.get("global_valid_toks") or float(mask.sum())
    out = policy_loss(
        logprobs,
        _flat(inputs["old_logprobs"]),
        _advantages(inputs),
        mask,
        denominator,
        **_clips(inputs),
        weights=_weights(inputs, mask),
    )
    loss = out.loss * inputs.get("dp_size", 1)  # the source undoes a mean over DP ranks
    kl_coef = inputs.get("config", {}).get("reference_policy_kl_penalty", 0.0)
    if kl_coef:
        term = kl_loss(logprobs, _flat(inputs["ref_logprobs"]), mask, "low_var_kl", denominator)
        loss = loss + kl_coef * term.loss
        assert_close(case, term.loss.detach(), expected["metrics"]["kl_penalty"])
    assert_close(case, loss.detach(), expected["loss"])
    loss.backward()
    if not kl_coef:  # that source adds the gradient of the sampling weight to its KL term; ours is a plain loss term
        assert_close(case, logprobs.grad, expected["grad_wrt_new_logprobs"])
    _assert_metrics(case, out, denominator)


def _assert_metrics(case, out, denominator) -> None:
    metrics = case["expected"].get("metrics", {}) | case["expected"]
    if "actor/pg_clipfrac" in metrics:
        assert_close(case, int(out.clip_fraction_sum) / int(out.num_tokens), metrics["actor/pg_clipfrac"])
        assert_close(case, out.kl_sum / out.num_tokens, metrics["actor/ppo_kl"])
        assert_close(case, int(out.dual_clip_sum) / int(out.num_tokens), metrics["actor/pg_clipfrac_lower"])
    if "clip_ratio" in metrics:
        assert_close(case, int(out.clip_fraction_sum) / int(out.num_tokens), metrics["clip_ratio"])
        assert_close(case, out.kl_sum / out.num_tokens, metrics["ppo_kl"])
    if "clip_ratio/region_mean" in metrics:
        assert_close(case, int(out.clip_fraction_sum) / int(out.num_tokens), metrics["clip_ratio/region_mean"])
    if "probs_ratio" in metrics:
        assert_close(case, out.ratio_sum / denominator, metrics["probs_ratio"])


def test_every_left_out_case_exists():
    assert set(LEFT_OUT) <= {case["id"] for case in load_cases("policy_loss")}
    assert len(CASES) == len(load_cases("policy_loss")) - 2


def test_sft_loss_equals_the_recorded_one():
    case = next(c for c in load_cases("dpo_rm_sft") if c["id"] == "sft_nemo_nll_sample_mask")
    mask = (tensor(case["inputs"]["mask"]) * tensor(case["inputs"]["sample_mask"])[:, None]).flatten().bool()
    loss = sft_loss(_flat(case["inputs"]["logprobs"]), mask, float(mask.sum()))
    assert_close(case, loss, case["expected"]["loss"])


def _random_tokens(num_tokens: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logprobs, old, advantages = torch.randn(3, num_tokens, dtype=torch.float64, generator=generator)
    return [logprobs, old, advantages, torch.rand(num_tokens, generator=generator) < 0.7]


def test_losses_and_metrics_of_parts_add_up_to_those_of_the_whole():
    tokens = _random_tokens(50)
    denominator = float(tokens[3].sum())
    whole = policy_loss(*tokens, denominator, 0.2, 0.3, 2.0)
    cuts = [slice(0, 7), slice(7, 8), slice(8, 50)]
    parts = [policy_loss(*(t[cut] for t in tokens), denominator, 0.2, 0.3, 2.0) for cut in cuts]
    for name in ("loss", "clip_fraction_sum", "dual_clip_sum", "kl_sum", "ratio_sum", "num_tokens"):
        torch.testing.assert_close(sum(getattr(part, name) for part in parts), getattr(whole, name))
    assert max(part.ratio_deviation_max for part in parts) == whole.ratio_deviation_max


def test_on_policy_tokens_have_ratio_one_and_the_policy_gradient():
    logprobs, _, advantages, mask = _random_tokens(20)
    old = logprobs.clone()
    out = policy_loss(logprobs.requires_grad_(), old, advantages, mask, 20, 0.2, 0.2)
    out.loss.backward()
    assert out.ratio_deviation_max == 0.0
    assert (out.clip_fraction_sum, out.kl_sum) == (0, 0)
    torch.testing.assert_close(logprobs.grad, torch.where(mask, -advantages / 20, 0.0))


def test_infinities_behind_the_mask_reach_neither_loss_nor_gradient():
    logprobs = torch.tensor([-1.0, -torch.inf, torch.nan, -2.0], requires_grad=True)
    old = torch.tensor([-1.1, -torch.inf, -1.0, -torch.inf])
    advantages = torch.tensor([1.0, torch.nan, torch.inf, 1.0])
    out = policy_loss(logprobs, old, advantages, torch.tensor([True, False, False, False]), 1, 0.2, 0.2, 3.0)
    out.loss.backward()
    assert all(torch.isfinite(value) for value in out)
    assert logprobs.grad[1:].tolist() == [0.0, 0.0, 0.0]


def test_a_huge_ratio_stays_finite():
    logprobs = torch.tensor([-0.1], requires_grad=True)
    out = policy_loss(logprobs, torch.tensor([-200.0]), torch.tensor([-1.0]), torch.tensor([True]), 1, 0.2, 0.2)
    out.loss.backward()
    assert torch.isfinite(out.loss)
    assert torch.isfinite(logprobs.grad).all()


def test_no_tokens_give_a_zero_loss_that_can_be_differentiated():
    empty = torch.zeros(0)
    out = policy_loss(empty.clone().requires_grad_(), empty, empty, empty.bool(), 5, 0.2, 0.2)
    out.loss.backward()
    assert (out.loss.item(), int(out.num_tokens)) == (0.0, 0)


def test_wrong_shapes_denominators_and_dual_clips_are_refused():
    one, two, mask = torch.zeros(1), torch.zeros(2), torch.ones(2, dtype=torch.bool)
    with pytest.raises(ValueError, match="flat and of one length"):
        policy_loss(two, one, two, mask, 2, 0.2, 0.2)
    with pytest.raises(ValueError, match="flat and of one length"):
        masked_sum(torch.zeros(1, 2), mask[None])
    with pytest.raises(ValueError, match="denominator must be positive"):
        sft_loss(two, mask, 0)
    with pytest.raises(ValueError, match="dual clip must be above 1"):
        policy_loss(two, two, two, mask, 2, 0.2, 0.2, dual_clip=0.5)

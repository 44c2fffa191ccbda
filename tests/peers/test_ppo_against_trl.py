"""One PPO iteration of sharded models against TRL's trainer: same four models, same responses, plain SGD, fp32.

The responses are fixed, of full length and without an end token, because there the definitions agree. They differ in:
- where the score stands: TRL adds it one token behind the end token, ours stands on the end token, the response's last;
  ours is tested by closed form in tests/unit/stages/test_ppo_advantages.py;
- the value loss: TRL adds ``vf_coef`` times it to one loss of both models, ours is the critic's own loss, so that its
  learning rate takes the place of the coefficient;
- the temperature: TRL adds 1e-7 to it.
"""

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mindllm.algorithms import make_kl_controller
from mindllm.config import AlgorithmConfig, RefConfig, RewardModelConfig, RunConfig
from mindllm.config.sections import KLControl
from mindllm.convert import convert_hf_to_mcore
from mindllm.data.sequences import FinishReason, Sequences
from mindllm.stages.ppo import add_advantages
from mindllm.workers.critic import CriticWorker
from mindllm.workers.dispatch import Scatter
from mindllm.workers.model import batch_limits
from mindllm.workers.objectives import PolicyObjective, ValueObjective
from mindllm.workers.ref import RefWorker
from mindllm.workers.reward import RewardWorker
from tests.distributed import ranks, scalars, shards
from tests.distributed.models import TinyModel, make_model
from tests.distributed.pool import run_ranks
from tests.distributed.reference import Adam
from tests.e2e.tiny import write_tokenizer

pytestmark = pytest.mark.peer

TOLERANCE = 1e-4
LAYOUT = ranks.TP2
NUM_SEQUENCES, PROMPT, RESPONSE = 8, 6, 9
TOKENS = 150  # ids that every model knows; 0 is TRL's padding and does not occur
TEMPERATURE, CLIP, CLIP_VALUE, KL_COEF, GAMMA, LAM = 0.7, 0.2, 0.05, 0.07, 0.97, 0.9
LR, VF_COEF = 0.02, 0.5
WHOLE_BATCH = 4096  # tokens of the one micro-batch


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TinyModel]:
    """Policy and critic of different architectures; the reference differs from the policy so that there is a KL."""
    root = tmp_path_factory.mktemp("roles")
    policy = make_model("qwen2", root / "policy")
    ref = make_model("qwen2", root / "ref")
    with torch.no_grad():
        generator = torch.Generator().manual_seed(3)
        for parameter in ref.hf.parameters():
            parameter += torch.randn(parameter.shape, generator=generator) * 0.02

    ref.hf.save_pretrained(root / "ref/moved")
    ref = TinyModel(
        "ref", root / "ref/moved", convert_hf_to_mcore(root / "ref/moved", root / "moved"), ref.arch, ref.hf
    )
    value = scalars.make_scalar_model("qwen3", root / "value")
    return {"policy": policy, "ref": ref, "value": value, "reward": scalars.make_scalar_model("qwen2", root / "reward")}


def token_ids() -> Tensor:
    """[sequences, prompt + response] ids."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, TOKENS, (NUM_SEQUENCES, PROMPT + RESPONSE), generator=generator)


def run_trl(roles: dict[str, TinyModel], folder: Path, kl_estimator: str, epochs: int, monkeypatch: Any) -> dict:
    """Drive TRL's own ``train`` for one iteration; its tensors and losses, and the models it leaves."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer

    write_tokenizer(folder / "tokenizer")
    ids = token_ids()
    models = {name: copy.deepcopy(model.hf) for name, model in roles.items()}
    responses = {tuple(row[:PROMPT].tolist()): row[PROMPT:] for row in ids}
    seen: dict[str, Any] = {}

    def fixed_responses(policy: Any, queries: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            tokens = torch.cat([queries, torch.stack([responses[tuple(row.tolist())] for row in queries])], dim=1)
            return tokens, policy(input_ids=tokens).logits[:, PROMPT - 1 : -1] / TEMPERATURE

    plain_whiten = ppo_trainer.masked_whiten

    def whiten(values: Tensor, mask: Tensor, shift_mean: bool = True) -> Tensor:
        """TRL's own; its caller's variables are the tensors that no metric shows."""
        names = ("query_responses", "logprobs", "ref_logprobs", "values", "scores", "rewards", "returns")
        caller = sys._getframe(1).f_locals
        whitened = plain_whiten(values, mask, shift_mean)
        seen.update({name: caller[name].clone() for name in names}, advantages=whitened)
        return whitened

    monkeypatch.setattr(ppo_trainer, "batch_generation", fixed_responses)
    monkeypatch.setattr(ppo_trainer, "masked_whiten", whiten)
    args = PPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=NUM_SEQUENCES,
        gradient_accumulation_steps=1,
        num_mini_batches=1,
        num_ppo_epochs=epochs,
        total_episodes=NUM_SEQUENCES,
        response_length=RESPONSE,
        local_rollout_forward_batch_size=NUM_SEQUENCES,
        temperature=TEMPERATURE,
        kl_coef=KL_COEF,
        kl_estimator=kl_estimator,
        cliprange=CLIP,
        cliprange_value=CLIP_VALUE,
        vf_coef=VF_COEF,
        gamma=GAMMA,
        lam=LAM,
        whiten_rewards=False,
        missing_eos_penalty=None,
        stop_token=None,
        num_sample_generations=0,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    optimizer = torch.optim.SGD([*models["policy"].parameters(), *models["value"].parameters()], lr=LR)
    data = Dataset.from_dict({"input_ids": ids[:, :PROMPT].tolist()})
    trainer = PPOTrainer(
        args=args,
        processing_class=AutoTokenizer.from_pretrained(folder / "tokenizer"),
        model=models["policy"],
        ref_model=models["ref"],
        reward_model=models["reward"],
        value_model=models["value"],
        train_dataset=data,
        eval_dataset=data,
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)),
    )

    def log(metrics: Any, *_: Any) -> None:
        caller = sys._getframe(1).f_locals
        seen.update(pg=caller["pg_loss_stats"].flatten(), vf=caller["vf_loss_stats"].flatten())

    monkeypatch.setattr(trainer, "log", log)
    trainer.train()
    return {**seen, "policy": models["policy"], "critic": models["value"]}


def in_order(seen: dict[str, Any]) -> dict[str, Any]:
    """TRL shuffles its prompts: bring what it computed back into the order of ``token_ids``."""
    drawn = [tuple(row.tolist()) for row in seen["query_responses"]]
    order = torch.tensor([drawn.index(tuple(row.tolist())) for row in token_ids()])
    names = ("logprobs", "ref_logprobs", "values", "scores", "rewards", "advantages", "returns")
    return {**seen, **{name: seen[name][order] for name in names}}


def make_batch() -> Sequences:
    ids = token_ids()
    batch = Sequences.from_lists(ids[:, :PROMPT].tolist(), ids[:, PROMPT:].tolist())
    batch.finish_reason = torch.full((NUM_SEQUENCES,), int(FinishReason.LENGTH))
    return batch


def configs() -> tuple[Any, Any, Any, Any]:
    """Of the four roles, at the layout under test; the actor's optimizer is never the one whose step counts."""
    common = {"use_distributed_optimizer": False, "max_tokens_per_micro_batch": WHOLE_BATCH}
    actor = ranks.actor_config(LAYOUT, Adam(clip_grad=0.0), **common)
    critic = scalars.critic_config(LAYOUT, Adam(clip_grad=0.0), **common)
    values = critic.model_dump()
    ref, reward = (
        kind(**{key: value for key, value in values.items() if key in kind.model_fields})
        for kind in (RefConfig, RewardModelConfig)
    )
    return actor, critic, ref, reward


def scores_on_rank(roles: dict[str, TinyModel], batch: Sequences) -> list[Tensor | None]:
    """Log-probs of policy and reference, values of all states, scores."""
    actor, critic, ref, reward = configs()
    share = ranks.share_of(batch, actor)
    return [
        ranks.make_worker(roles["policy"], actor).logprobs(share, TEMPERATURE),
        RefWorker(ref, roles["ref"].checkpoint).logprobs(share, TEMPERATURE),
        CriticWorker(critic, roles["value"].checkpoint, 1, False).values(share),
        RewardWorker(reward, roles["reward"].checkpoint).scores(share),
    ]


def sgd_on_rank(roles: dict[str, TinyModel], batch: Sequences, epochs: int) -> list[tuple[list[Any], Any]]:
    """Answers of every update of actor and critic, and the weights in the end.

    The optimizer here is Adam's, so its step is undone and SGD's taken with the very gradients it was given.
    """
    actor, critic, _, _ = configs()
    tokens = batch.num_response_tokens
    policy = PolicyObjective(tokens, TEMPERATURE, CLIP, CLIP, None, 0.0, 0.0, "kl")
    jobs = [
        (ranks.make_worker(roles["policy"], actor), policy, LR),
        (CriticWorker(critic, roles["value"].checkpoint, 1, False), ValueObjective(tokens, CLIP_VALUE), LR * VF_COEF),
    ]
    results = []
    for worker, objective, lr in jobs:
        answers = []
        parameters = [parameter for chunk in worker.chunks for parameter in chunk.parameters()]
        for _ in range(epochs):
            before = [parameter.detach().clone() for parameter in parameters]
            answers.append(worker.update(ranks.share_of(batch, actor), objective))
            with torch.no_grad():
                for parameter, old in zip(parameters, before, strict=True):
                    parameter.copy_(old - lr * parameter.main_grad)
        results.append((answers, shards.weights(worker.chunks)))
    return results


def assert_close(ours: Tensor, theirs: Tensor, what: str) -> None:
    """Within 1e-4 of the largest entry."""
    error = float((ours - theirs.flatten()).abs().max() / theirs.abs().max())
    assert error < TOLERANCE, f"{what} differs by {error:.1e}"


@pytest.mark.parametrize(("kl_estimator", "epochs"), [("k1", 1), ("k3", 3)])
def test_an_iteration_equals_that_of_trl(
    kl_estimator: str, epochs: int, roles: dict[str, TinyModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl")
    theirs = in_order(run_trl(roles, tmp_path, kl_estimator, epochs, monkeypatch))
    batch = make_batch()
    limits, lengths = batch_limits(configs()[0], 1), batch.response_lengths
    answers = run_ranks(LAYOUT, 1, scores_on_rank, roles, batch)
    (heard,) = [answer for answer in answers if answer[0] is not None]
    scatter = Scatter(batch, limits)
    batch.old_logprobs, batch.ref_logprobs = (scatter.gather([part], lengths) for part in heard[:2])
    states = scatter.gather([heard[2]], lengths + 1).view(NUM_SEQUENCES, RESPONSE + 1)
    batch.values, last_values = states[:, :-1].flatten(), states[:, -1]
    batch.rewards = scatter.gather([heard[3]], torch.ones_like(lengths)).double()
    assert_close(batch.old_logprobs, theirs["logprobs"], "log-probs")
    assert_close(batch.ref_logprobs, theirs["ref_logprobs"], "log-probs of the reference")
    assert_close(batch.values, theirs["values"], "values")
    assert_close(batch.rewards, theirs["scores"], "scores")

    kind = {"k1": "kl", "k3": "low_var_kl"}[kl_estimator]
    control = KLControl(type="fixed", kl_coef=KL_COEF)
    settings = {"adv_estimator": "gae", "gamma": GAMMA, "lam": LAM, "use_kl_in_reward": True, "kl_penalty": kind}
    token_rewards = AlgorithmConfig(**{**settings, "gamma": 0.0, "lam": 0.0}, kl_ctrl=control)
    rewards_only = copy.deepcopy(batch)  # with gamma 0 a return is the token's own reward
    add_advantages(
        rewards_only, last_values, RunConfig.model_construct(algorithm=token_rewards), make_kl_controller(control)
    )
    assert_close(rewards_only.returns, theirs["rewards"], "KL rewards")
    algorithm = AlgorithmConfig(**settings, advantage_whiten=True, kl_ctrl=control)
    add_advantages(batch, last_values, RunConfig.model_construct(algorithm=algorithm), make_kl_controller(control))
    assert_close(batch.advantages, theirs["advantages"], "advantages")
    assert_close(batch.returns, theirs["returns"], "returns")

    updates = run_ranks(LAYOUT, 1, sgd_on_rank, roles, batch, epochs)
    for number, (role, model, name) in enumerate((("policy", "policy", "pg"), ("critic", "value", "vf"))):
        losses = []
        for epoch in range(epochs):
            sums = [answer[number][0][epoch] for answer in updates]
            losses.append(next(part for part in sums if part is not None)[0][f"{name}_loss"])
        torch.testing.assert_close(torch.tensor(losses), theirs[name], rtol=TOLERANCE, atol=1e-6)
        pieces = [piece for answer in updates for piece in answer[number][1]]
        ours = shards.assemble(pieces, roles[model].arch)
        weights = {key: value.detach() for key, value in theirs[role].named_parameters()}
        shards.assert_equal_tensors(ours, weights, TOLERANCE, role)
        # the steps were not lost in the tolerance: every tensor moved by much more
        start = {key: value.detach() for key, value in roles[model].hf.named_parameters()}
        moved = shards.relative_errors(start, weights)
        assert sum(error > 10 * TOLERANCE for error in moved.values()) > len(moved) / 2, f"{role} hardly moved"

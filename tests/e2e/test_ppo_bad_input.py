"""PPO runs that cannot work: one sentence that names the culprit, before anything starts or is written."""

import pytest

from mindllm import posttrain
from tests.e2e import tiny
from tests.e2e.runs import ACTOR, post_train, run_here
from tests.e2e.test_bad_input import check_refusal, no_ray

BAD_RUNS = {
    "critic that is a language model": (
        ["critic.load={root}/mcore"],
        ["critic.load", "is a language model", "--head reward"],
    ),
    "reward model that is a language model": (["reward.load={root}/mcore"], ["reward.load", "is a language model"]),
    "actor that is a reward model": (
        [f"{ACTOR}.load={{root}}/reward"],
        ["actor_rollout.load", "a model that scores with one number"],
    ),
    "reference that is a reward model": (
        ["actor_rollout_ref.ref.load={root}/reward"],
        ["ref.load", "a model that scores with one number"],
    ),
    "pairs instead of prompts": ([f"{ACTOR}.data_path={{root}}/pairs/train"], ["data_path|pairs/train"]),
    "SFT data instead of prompts": ([f"{ACTOR}.data_path={{root}}/data/sft"], ["data/sft"]),
    "critic missing on disk": (["critic.load={tmp}/none"], ["critic|none"]),
    "reward model missing on disk": (["reward.load={tmp}/none"], ["none"]),
    "HF directory as critic": (["critic.load={root}/hf"], ["hf", "convert_ckpt.py"]),
    "tokenizer of the reward model missing": (["reward.tokenizer_name_or_path={tmp}/none"], ["none"]),
    "tokenizer of the reward model with another vocabulary": (
        ["reward.tokenizer_name_or_path={tmp}/tokenizer"],
        ["reward.tokenizer_name_or_path", "28 tokens", "20"],
    ),
    "chat template of the reward model that refuses prompts": (
        ["reward.tokenizer_name_or_path={tmp}/refuses"],
        ["prompt 0 of", "refuses this conversation: never", "{tmp}/refuses"],
    ),
    "no reward at all": (["reward.load=null"], ["reward"]),
    "no critic": (["critic.load=null"], ["critic.load is missing"]),
    "critic in the actor's directory": (
        ["critic.save={tmp}/here", f"{ACTOR}.save={{tmp}}/here"],
        ["critic.save", "directory of its own"],
    ),
    "critic with a layout the model does not have": (
        ["training.executor=ray", "critic.tensor_model_parallel_size=3"],
        ["critic.tensor_model_parallel_size", "3", "1, 2"],
    ),
    "window of the critic": (["critic.seq_length=8"], ["critic.seq_length"]),
    "group advantages": (["algorithm.adv_estimator=group_norm"], ["adv_estimator", "ray_grpo"]),
    "mini-batch of the critic": (["critic.critic_mini_batch_size=12"], ["critic_mini_batch_size", "12"]),
    "clip of the values": (["critic.cliprange_value=0"], ["critic.cliprange_value"]),
    "separate generation inline": ([f"{ACTOR}.num_gpus_for_infer=1"], ["inline|num_gpus_for_infer"]),
    "critic on two ranks inline": (["resource_pool.critic=2"], ["inline|resource_pool.critic"]),
    "misspelt key": (["critic.cliprange_vlaue=0.2"], ["cliprange_vlaue", "did you mean 'cliprange_value'"]),
    "misspelt controller": (["algorithm.kl_ctrl.type=adaptiv"], ["kl_ctrl", "adaptiv"]),
}


@pytest.mark.parametrize("name", BAD_RUNS)
def test_a_run_that_cannot_work_is_refused_in_one_sentence(name, ppo_workspace, tmp_path):
    overrides, fragments = BAD_RUNS[name]
    if any("{tmp}/tokenizer" in text for text in overrides):
        tiny.write_tokenizer(tmp_path / "tokenizer", [*tiny.VOCABULARY, *"abcdefgh"])
    tiny.write_tokenizer(tmp_path / "refuses", chat_template="{{ raise_exception('never') }}")
    texts = [text.format(tmp=tmp_path, root=ppo_workspace.root) for text in overrides]
    outcome = run_here(posttrain.main, ppo_workspace.arguments("ppo", tmp_path / "run", *texts))
    check_refusal(outcome, [text.replace("{tmp}", str(tmp_path)) for text in fragments])
    assert not (tmp_path / "run").exists()
    assert no_ray()


def test_a_critic_that_never_has_a_finite_gradient_ends_the_run_by_name(ppo_workspace, tmp_path):
    more = ["training.max_skipped_steps=2", "critic.lr=1e30", "training.train_iters=4"]
    outcome = post_train(ppo_workspace.arguments("ppo", tmp_path / "run", *more), status=2)
    assert "max_skipped_steps" in outcome.err and "of the critic" in outcome.err

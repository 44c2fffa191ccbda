import re
from pathlib import Path

import yaml

from mindllm.config.sections import RewardConfig
from mindllm.rewards import RewardItem, RewardRunner, check_rewards

PAGE = (Path(__file__).parents[3] / "docs" / "rewards.md").read_text()


def _block(language: str) -> str:
    return re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[1]


def test_the_examples_of_the_page_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my_rewards.py").write_text(_block("python"))
    config = RewardConfig(**yaml.safe_load(_block("yaml"))["reward"])
    check_rewards(config.functions, ["solution", "level"])
    right = "<think>2+2</think><answer>4</answer>"
    items = [
        RewardItem(0, "2+2?", right, {"solution": "4", "level": 1}),
        RewardItem(1, "2+2?", right, {"solution": "4", "level": 5}),
        RewardItem(2, "2+2?", "It is 4." + " Really." * 10, {"solution": "5", "level": 1}),
    ]
    with RewardRunner(config.functions, config.on_error, config.timeout_s, config.num_workers) as runner:
        result = runner.score(items)
    assert result.per_function["brevity"] == [1.0, None, 0.0]
    assert [round(total, 9) for total in result.total] == [1.3, 1.2, 0.0]

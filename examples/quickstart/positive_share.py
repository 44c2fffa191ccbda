"""The measure of the review task, as a reward function: which share of a review's opinions is positive.

The PPO quickstart runs it with weight 0: it only shows, as ``reward/positive_share/mean``, whether the reward model's
score means what it should.
"""

POSITIVE = ("superb", "lovely", "clever", "funny", "moving", "fresh", "warm", "bright", "gripping", "perfect")
NEGATIVE = ("dull", "awful", "clumsy", "boring", "shallow", "stale", "cold", "messy", "tedious", "weak")


def positive_share(completions: list[str], **columns: object) -> list[float]:
    """Positive words over all words of opinion, 0 without any."""
    return [share(completion.split()) for completion in completions]


def share(words: list[str]) -> float:
    """Share of one review."""
    positive = sum(word in POSITIVE for word in words)
    negative = sum(word in NEGATIVE for word in words)
    return positive / max(1, positive + negative)

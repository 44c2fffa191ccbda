"""Write the PPO quickstart's task: short reviews, of which the ones with more praise are preferred.

OUT/sft.jsonl                                 reviews, Alpaca style: instruction, output; more blame than praise
OUT/pairs_train.jsonl, pairs_heldout.jsonl    two reviews of one thing: instruction, chosen, rejected
OUT/rl_train.jsonl, rl_heldout.jsonl          prompts only
OUT/words.txt                                 every word that occurs

Prompts of the held-out files occur in none of the others. What a review is worth, positive_share.py counts.
"""

import argparse
import itertools
import json
import random
from pathlib import Path

from positive_share import NEGATIVE, POSITIVE, share

STYLES = ("short", "honest", "quick", "careful", "plain", "frank", "brief", "sober")
GENRES = ("crime", "space", "war", "love", "horror", "family", "history", "music", "travel", "robot")
THINGS = ("film", "book", "play", "game", "series", "album", "show", "novel")
ASPECTS = ("plot", "cast", "pace", "tone", "ending", "sound", "idea", "style", "start", "detail")
DEGREES = ("", "very", "quite", "rather")
GRAMMAR = ("write", "a", "review", "of", "the", "is", "and", "but")
WORDS = (*GRAMMAR, *STYLES, *GENRES, *THINGS, *ASPECTS, *DEGREES[1:], *POSITIVE, *NEGATIVE)

NUM_OPINIONS = (2, 3, 4)
PRAISE = 0.4  # probability that an opinion is positive
NUM_HELDOUT = 128
NUM_SFT, NUM_PAIRS, NUM_HELDOUT_PAIRS = 3584, 2560, 256


def main() -> None:
    """Write the files of one seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="directory to write to")
    parser.add_argument("--seed", type=int, default=0, help="which prompts are held out, and all reviews")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed)

    (args.out / "words.txt").write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
    prompts = make_prompts()
    rng.shuffle(prompts)
    heldout, train = prompts[:NUM_HELDOUT], prompts[NUM_HELDOUT:]
    reviews = [{"instruction": rng.choice(train), "output": make_review(rng)} for _ in range(NUM_SFT)]
    write_jsonl(args.out / "sft.jsonl", reviews)
    for name, part, count in (("train", train, NUM_PAIRS), ("heldout", heldout, NUM_HELDOUT_PAIRS)):
        write_jsonl(args.out / f"pairs_{name}.jsonl", [make_pair(rng, part) for _ in range(count)])
        write_jsonl(args.out / f"rl_{name}.jsonl", [{"prompt": prompt} for prompt in part])


def make_prompts() -> list[str]:
    """Every prompt once."""
    return [
        f"write a {style} review of a {genre} {thing}"
        for style, genre, thing in itertools.product(STYLES, GENRES, THINGS)
    ]


def make_review(rng: random.Random) -> str:
    """A few opinions on different aspects; `but` where praise and blame meet."""
    clauses: list[str] = []
    before = None
    for aspect in rng.sample(ASPECTS, rng.choice(NUM_OPINIONS)):
        praise = rng.random() < PRAISE
        if before is not None:
            clauses.append("and" if praise == before else "but")
        clauses.append(f"the {aspect} is {rng.choice(DEGREES)} {rng.choice(POSITIVE if praise else NEGATIVE)}")
        before = praise
    return " ".join(" ".join(clauses).split())


def make_pair(rng: random.Random, prompts: list[str]) -> dict[str, str]:
    """One prompt with two reviews whose positive shares differ; the larger one is chosen."""
    while True:
        rejected, chosen = sorted((make_review(rng), make_review(rng)), key=lambda review: share(review.split()))
        if share(rejected.split()) < share(chosen.split()):
            return {"instruction": rng.choice(prompts), "chosen": chosen, "rejected": rejected}


def write_jsonl(path: Path, rows: list[dict[str, str]]) -> None:
    """One JSON object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Write the quickstart's task: sort four digits between <answer> tags.

OUT/sft.jsonl                        demonstrations, Alpaca style: instruction, output
OUT/rl_train.jsonl, .parquet         prompts with a `solution` column, which the reward reads
OUT/rl_heldout.jsonl, .parquet       prompts that occur in neither of the files above
"""

import argparse
import itertools
import json
import random
from pathlib import Path

import pyarrow
import pyarrow.parquet

DIGITS = "123456789"  # no zero: as numbers, 0112 and 112 would be the same answer
LENGTH = 4
NUM_HELDOUT = 200
NUM_SFT = 3584


def main() -> None:
    """Write the files of one seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="directory to write to")
    parser.add_argument("--seed", type=int, default=0, help="order of the prompts, and so which are held out")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    rows = make_rows(args.seed)
    heldout, train = rows[:NUM_HELDOUT], rows[NUM_HELDOUT:]
    write_jsonl(args.out / "sft.jsonl", [demonstration(row) for row in train[:NUM_SFT]])
    for name, part in (("rl_train", train), ("rl_heldout", heldout)):
        write_jsonl(args.out / f"{name}.jsonl", part)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(part), args.out / f"{name}.parquet")


def make_rows(seed: int) -> list[dict[str, str]]:
    """Every prompt once, with its solution, in an order that depends on ``seed`` only."""
    rows = [
        {"prompt": "sort " + "".join(digits), "solution": "".join(sorted(digits))}
        for digits in itertools.product(DIGITS, repeat=LENGTH)
    ]
    random.Random(seed).shuffle(rows)
    return rows


def demonstration(row: dict[str, str]) -> dict[str, str]:
    """The prompt answered as it should be."""
    return {"instruction": row["prompt"], "output": f"<answer>{row['solution']}</answer>"}


def write_jsonl(path: Path, rows: list[dict[str, str]]) -> None:
    """One JSON object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Selection, shuffling, blending, splitting; and packing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mindllm.data import InstructionDataset, PromptDataset
from mindllm.data.sidecar import Spool, write_sidecar
from mindllm.errors import UserError
from mindllm.preprocess.output.order import OrderOptions, make_order
from mindllm.preprocess.output.packing import fill_rate, pack_rows
from mindllm.preprocess.run import PreprocessOptions, preprocess

PPO, SFT = "PPOAlpacaStyleInstructionHandler", "AlpacaStyleInstructionHandler"


def rows_of(counts: list[int], **options: Any) -> list[int]:
    found = make_order(counts, OrderOptions(**options)).rows
    assert found is not None
    return found.tolist()


def test_shuffling_is_a_permutation_that_the_seed_fixes() -> None:
    first = rows_of([600, 400], shuffle=True, seed=1)
    assert sorted(first) == list(range(1000)) != first
    assert first == rows_of([1000], shuffle=True, seed=1) != rows_of([1000], shuffle=True, seed=2)


def test_max_samples_takes_the_first_rows_or_a_random_choice() -> None:
    assert rows_of([10], max_samples=3) == [0, 1, 2]
    assert rows_of([1000], max_samples=5, shuffle=True) == rows_of([1000], shuffle=True)[:5]
    assert make_order([10], OrderOptions(max_samples=10)).rows is None


def test_interleaving_under_stops_when_the_first_input_has_run_out() -> None:
    rows = rows_of([10, 1000], mix_strategy="interleave_under")
    assert [row for row in rows if row < 10] == list(range(10)) and rows[-1] == 9 and len(set(rows)) == len(rows)
    assert 10 < len(rows) < 40


def test_interleaving_over_uses_every_row_and_starts_short_inputs_again() -> None:
    rows = rows_of([10, 1000], mix_strategy="interleave_over", interleave_probs=(0.25, 0.75))
    assert set(rows) == set(range(1010)) and rows[-1] == 1009
    assert [row for row in rows if row >= 10] == list(range(10, 1010))
    assert 250 < sum(row < 10 for row in rows) < 420


def test_a_split_has_disjoint_parts_of_the_sizes_asked_for() -> None:
    assert make_order([1000], OrderOptions(split=(98, 1, 1))).parts == [
        ("train", 0, 980), ("valid", 980, 990), ("test", 990, 1000),
    ]  # fmt: skip
    assert make_order([10], OrderOptions(split=(1, 0, 1))).parts == [("train", 0, 5), ("test", 5, 10)]


@pytest.mark.parametrize(
    ("counts", "options", "message"),
    [
        ([5], {"mix_strategy": "interleave_under"}, "needs at least two inputs"),
        ([5, 0], {"mix_strategy": "interleave_under"}, "input 2 has no rows"),
        ([5, 5], {"interleave_probs": (0.5, 0.5)}, "no effect with --mix-strategy concat"),
        ([5, 5], {"mix_strategy": "interleave_under", "interleave_probs": (1.0,)}, "1 numbers for 2 inputs"),
        ([5, 5], {"mix_strategy": "interleave_under", "interleave_probs": (0.5, 0.6)}, "add up to 1"),
        ([5, 5], {"mix_strategy": "interleave_over", "split": (1, 1)}, "cannot keep rows apart"),
        ([5], {"split": (1, 1, 1, 1)}, "up to three weights"),
        ([5], {"split": (-1, 1)}, "up to three weights"),
        ([5], {"split": (98, 1, 1)}, "no rows for valid: there are 5 rows"),
    ],
)
def test_options_that_make_no_sense_are_refused(counts: list[int], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_order(counts, OrderOptions(**options))


def test_a_shuffled_split_run_writes_each_row_once_with_its_columns(
    write_jsonl: Callable[..., Path], tokenizer_dir: Path, tmp_path: Path
) -> None:
    rows = [{"instruction": None if n % 10 == 3 else f"question {n}", "n": n} for n in range(200)]
    inputs = [str(write_jsonl(rows[:120])), str(write_jsonl(rows[120:], "more.jsonl"))]
    order = OrderOptions(shuffle=True, seed=3, split=(90, 10), max_samples=150)
    contents = []
    for workers, n_subs in [(1, 1), (1, 7), (2, 3)]:
        prefix = tmp_path / f"{workers}-{n_subs}" / "rl"
        manifests = preprocess(
            PreprocessOptions(inputs, prefix, tokenizer_dir, PPO, order=order, workers=workers, n_subs=n_subs)
        )
        contents.append({path.name: path.read_bytes() for path in prefix.parent.iterdir()})
    assert contents[0] == contents[1] == contents[2] and len(contents[0]) == 8
    train, valid = PromptDataset(f"{prefix}_train"), PromptDataset(f"{prefix}_valid")
    everything = [data[index] for data in (train, valid) for index in range(len(data))]
    numbers = [prompt.columns["n"] for prompt in everything]
    expected = [row for row in rows_of([200], shuffle=True, seed=3)[:150] if row % 10 != 3]
    assert numbers == expected and all(p.columns["prompt"] == f"question {p.columns['n']}" for p in everything)
    assert manifests["valid"]["samples"]["samples"] == len(valid) and manifests["train"]["rows"]["in"] == 150
    assert manifests["train"]["rows"]["dropped"] == {"null_prompt": 150 - len(expected)}


def test_a_blend_repeats_rows_of_short_inputs(
    write_jsonl: Callable[..., Path], tokenizer_dir: Path, tmp_path: Path
) -> None:
    inputs = [
        str(write_jsonl([{"instruction": f"{name}{n}"} for n in range(count)], f"{name}.jsonl"))
        for name, count in (("a", 3), ("b", 50))
    ]
    order = OrderOptions(mix_strategy="interleave_over", seed=5)
    preprocess(PreprocessOptions(inputs, tmp_path / "mix", tokenizer_dir, PPO, order=order))
    data = PromptDataset(tmp_path / "mix")
    texts = [data[index].columns["prompt"] for index in range(len(data))]
    names = [f"a{n}" for n in range(3)] + [f"b{n}" for n in range(50)]
    assert texts == [names[row] for row in rows_of([3, 50], mix_strategy="interleave_over", seed=5)]


def test_a_reordered_sidecar_needs_one_bucket_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mindllm.data.sidecar._BUCKET", 16)
    with (tmp_path / "spool").open("wb") as file:
        spool = Spool(file)
        for start in range(0, 100, 10):
            spool.append([{"n": n, "text": None if n % 7 == 0 else str(n)} for n in range(start, start + 10)])
    samples = np.array([99, 0, 5, 5, *range(30, 70), 7])
    nulls = write_sidecar(tmp_path / "out.parquet", [tmp_path / "spool"], samples)
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["n"].to_pylist() == samples.tolist() and nulls == {"n": 0, "text": table["text"].null_count}
    assert isinstance(table, pa.Table) and {path.name for path in tmp_path.iterdir()} == {"spool", "out.parquet"}


def test_packing_is_best_fit_and_loses_nothing() -> None:
    lengths = np.array([7, 3, 5, 5, 10, 1, 9])
    assert [row.tolist() for row in pack_rows(lengths, 10)] == [[0, 1], [2, 3], [4], [5, 6]]
    many = np.random.default_rng(0).integers(1, 300, 5000)
    rows = pack_rows(many, 1024)
    assert sorted(np.concatenate(rows).tolist()) == list(range(5000))
    totals = np.array([many[row].sum() for row in rows])
    assert totals.max() <= 1024 and fill_rate(totals, 1024) > 0.99


def dialogues(count: int) -> list[dict[str, str]]:
    return [{"instruction": f"question {n}", "output": f"answer {n} " * (n % 5 + 1)} for n in range(count)]


@pytest.mark.parametrize("kind", ["pack", "neat"])
def test_packed_rows_hold_the_samples_whole_with_their_labels(
    kind: Any, write_jsonl: Callable[..., Path], tokenizer_dir: Path, tmp_path: Path
) -> None:
    data = str(write_jsonl(dialogues(60)))
    common = {"inputs": [data], "tokenizer": tokenizer_dir, "handler": SFT, "seq_length": 256}
    preprocess(PreprocessOptions(output_prefix=tmp_path / "plain", **common))
    manifest = preprocess(PreprocessOptions(output_prefix=tmp_path / "packed", pack=kind, n_subs=4, **common))[""]
    plain, packed = InstructionDataset(tmp_path / "plain"), InstructionDataset(tmp_path / "packed")
    wanted = {(tuple(plain[i].input_ids), tuple(plain[i].labels)) for i in range(len(plain))}
    found = set()
    for index in range(len(packed)):
        row = packed[index]
        ends = np.cumsum(row.segments)
        assert ends[-1] == len(row.input_ids) == len(row.labels) and (kind == "neat" or len(row.input_ids) == 256)
        if kind == "neat":
            pieces = zip(np.split(row.input_ids, ends[:-1]), np.split(row.labels, ends[:-1]), strict=True)
            found |= {(tuple(ids), tuple(labels)) for ids, labels in pieces}
    assert kind == "pack" or found == wanted
    trained = sum(int((packed[i].labels != -100).sum()) for i in range(len(packed)))
    assert trained == manifest["tokens"]["trained"] == sum(int((plain[i].labels != -100).sum()) for i in range(60))
    rate = manifest["tokens"]["total"] / (len(packed) * 256)
    assert manifest["samples"] == {"samples": 60, "rows": len(packed), "fill_rate": rate} and rate > 0.9


def test_padding_of_packed_rows_is_the_eos_and_not_trained(
    write_jsonl: Callable[..., Path], tokenizer_dir: Path, tmp_path: Path, decode: Callable[[Any], str]
) -> None:
    data = str(write_jsonl(dialogues(1)))
    preprocess(PreprocessOptions([data], tmp_path / "p", tokenizer_dir, SFT, seq_length=128, pack="pack"))
    row = InstructionDataset(tmp_path / "p")[0]
    dialogue, padding = decode(row.input_ids).split("answer 0 <|im_end|>\n")
    assert dialogue.endswith("<|im_start|>assistant\n") and set(padding.split("<|im_end|>")) == {""}
    assert len(row.input_ids) == 128
    assert decode(row.labels[row.labels != -100]) == "answer 0 <|im_end|>"

"""A suggestion is a misspelling or an abbreviation of what was written, and otherwise there is none."""

import pytest

from mindllm.errors import did_you_mean, in_one_line, near_names

KEYS = ["seed", "load", "load_dir", "do_sample", "use_kl_loss", "train_iters", "num_layers", "micro_batch_size"]
KEYS += ["global_batch_size", "temperature", "lr"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("sed", ["seed"]),
        ("sede", ["seed"]),  # two letters swapped are one mistake
        ("laod", ["load"]),
        ("train_iterss", ["train_iters"]),
        ("Train-Iters", ["train_iters"]),
        ("temprature", ["temperature"]),
        ("gloabl_batch_szie", ["global_batch_size"]),
        ("num_layer", ["num_layers"]),
        ("iters", ["train_iters"]),
        ("temp", ["temperature"]),
        ("num_layers_", ["num_layers"]),
        ("global_batch_sizes_", ["global_batch_size"]),
        ("batch_size", ["micro_batch_size", "global_batch_size"]),
    ],
)
def test_a_misspelling_and_left_out_words_find_the_name(written, meant):
    assert near_names(written, KEYS) == meant


@pytest.mark.parametrize(
    "written", ["use_vllm", "dynamic_sample", "deepspeed", "lp", "ls", "x", "", "_", "fsdp", "reward_size_limit"]
)
def test_a_name_that_only_shares_letters_finds_none(written):
    assert near_names(written, KEYS) == []


def test_camel_case_is_read_as_words():
    handlers = ["PPOAlpacaStyleInstructionHandler", "SharegptStyleInstructionHandler"]
    assert near_names("PPOAlpacaStyleHandler", handlers) == handlers[:1]


def test_a_flag_is_not_offered_for_another():
    assert near_names("--lora-r", ["--load-dir", "--lora-load", "--head"]) == []
    assert near_names("--loda_dir", ["--load-dir", "--lora-load", "--head"]) == ["--load-dir"]


def test_the_sentence_names_all_that_may_be_meant_and_is_empty_without():
    assert did_you_mean("batch_size", KEYS) == "; did you mean 'micro_batch_size' or 'global_batch_size'?"
    assert did_you_mean("deepspeed", KEYS) == ""


def test_what_an_error_says_is_one_line_also_where_it_says_nothing():
    assert in_one_line(ValueError("one of:\n  (1) a\n  (2) b")) == "one of: (1) a (2) b"
    assert in_one_line(EOFError()) == "EOFError"
    assert in_one_line(ValueError("x" * 400)) == "x" * 300 + " ..."

"""Which layouts a checkpoint can be split into."""

import dataclasses

import pytest

from mindllm.config import build_config
from mindllm.errors import UserError
from mindllm.models.families import load_architecture
from mindllm.preflight.check import _check_layout
from tests.e2e import tiny


@pytest.fixture(scope="module")
def architecture(tmp_path_factory):
    """Four layers, four heads in two groups, 176 feed-forward columns."""
    directory = tmp_path_factory.mktemp("model")
    tiny.write_model(directory, num_layers=4)
    return load_architecture(directory)


def role(**keys):
    training = {"stage": "sft", "train_iters": 2, "global_batch_size": 8, "seq_length": 16}
    return build_config({"training": training | {"load": "/ckpt", "data_path": "data", "lr": 1e-3} | keys}).actor


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"tensor_model_parallel_size": 2},
        {"tensor_model_parallel_size": 4},  # two ranks share a query group
        {"pipeline_model_parallel_size": 4},
        {"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 1},
    ],
)
def test_a_layout_that_divides_the_model_passes(keys, architecture):
    _check_layout("actor", role(**keys), architecture)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {"tensor_model_parallel_size": 3},
            r"actor.tensor_model_parallel_size: 3 does not divide num_attention_heads 4, .*\[1, 2, 4\] \(/ckpt\)",
        ),
        ({"tensor_model_parallel_size": 8}, "8 does not divide num_attention_heads 4; the nearest"),
        ({"pipeline_model_parallel_size": 3}, "3 does not divide num_layers 4; the nearest that do are"),
        (
            {"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 2},
            "2 does not split the 2 layers of a pipeline stage of /ckpt into two or more chunks",
        ),
    ],
)
def test_another_is_refused_with_the_choices_there_are(keys, sentence, architecture):
    with pytest.raises(UserError, match=sentence):
        _check_layout("actor", role(**keys), architecture)


@pytest.mark.parametrize(("size", "said"), [(4, None), (3, "actor.inference_tensor_model_parallel_size: 3 does not")])
def test_the_layout_of_ranks_that_only_generate_is_checked_too(size, said, architecture):
    separate = role().model_copy(update={"num_gpus_for_infer": size, "inference_tensor_model_parallel_size": size})
    if said is None:
        _check_layout("actor", separate, architecture)
    else:
        with pytest.raises(UserError, match=said):
            _check_layout("actor", separate, architecture)


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (2, None),
        (4, None),
        (6, r"6 does not divide num_key_value_heads 4 \(nor is it a multiple\)"),
        (12, "12 does not divide rows of query, key and value 320"),
    ],
)
def test_ranks_may_share_query_groups_where_megatron_core_can_split_the_projection(tensor, said, architecture):
    sizes = {"num_attention_heads": 12, "num_query_groups": 4, "head_dim": 16, "ffn_hidden_size": 192}
    arch = dataclasses.replace(architecture, **sizes)
    if said is None:
        _check_layout("actor", role(tensor_model_parallel_size=tensor), arch)
    else:
        with pytest.raises(UserError, match=said):
            _check_layout("actor", role(tensor_model_parallel_size=tensor), arch)

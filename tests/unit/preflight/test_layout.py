"""Which layouts a checkpoint can be split into."""

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
    return build_config({"training": training | {"load": "ckpt", "data_path": "data", "lr": 1e-3} | keys}).actor


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"tensor_model_parallel_size": 2},
        {"pipeline_model_parallel_size": 4},
        {"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 1},
    ],
)
def test_a_layout_that_divides_the_model_passes(keys, architecture):
    _check_layout("actor", role(**keys), architecture)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"tensor_model_parallel_size": 4}, "4 does not divide the 2 query groups of ckpt; allowed: 1, 2"),
        ({"tensor_model_parallel_size": 3}, "3 does not divide the 4 attention heads of ckpt; allowed: 1, 2"),
        ({"pipeline_model_parallel_size": 3}, "3 does not divide the 4 layers of ckpt; allowed: 1, 2, 4"),
        (
            {"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 2},
            "2 does not split the 2 layers of a pipeline stage of ckpt into two or more chunks",
        ),
    ],
)
def test_another_is_refused_with_the_choices_there_are(keys, sentence, architecture):
    with pytest.raises(UserError, match=sentence):
        _check_layout("actor", role(**keys), architecture)

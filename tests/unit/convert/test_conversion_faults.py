"""Whatever is wrong with the input, there is one sentence and nothing under the final name."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from mindllm.checkpoint import latest_iteration_dir, read_checkpoint_info
from mindllm.convert import convert_hf_to_mcore, convert_mcore_to_hf
from mindllm.convert.cli import main
from mindllm.errors import UserError
from mindllm.formats.arrays import from_torch, to_torch
from mindllm.formats.torch_dist import TorchDistReader, TorchDistWriter
from tests.unit.convert.tiny_models import assert_same_tensors, edit_config, edit_tensors, make_hf_model, read_all

ROOT = Path(__file__).parents[3]


@pytest.fixture
def hf(hf_qwen2: Path, tmp_path: Path) -> Path:
    """A copy of the model that a test may spoil."""
    return shutil.copytree(hf_qwen2, tmp_path / "hf")


@pytest.fixture
def mcore(mcore_qwen2: Path, tmp_path: Path) -> Path:
    """A copy of the converted model that a test may spoil."""
    return shutil.copytree(mcore_qwen2, tmp_path / "mcore")


def refused(source: Path, tmp_path: Path, **options: Any) -> str:
    """Convert ``source`` (either way) and return the sentence with which it is refused."""
    convert: Any = convert_hf_to_mcore if (source / "config.json").exists() else convert_mcore_to_hf
    with pytest.raises(UserError) as error:
        convert(source, tmp_path / "result", **options)
    assert not (tmp_path / "result").exists()
    assert not list(tmp_path.glob("result*"))
    return str(error.value)


def rewrite(directory: Path, changes: dict[str, torch.Tensor | None]) -> None:
    """Replace, add or (None) remove tensors of a torch_dist directory."""
    with TorchDistReader(directory) as reader:
        tensors = {**{key: to_torch(reader.read(key)) for key in reader.keys()}, **changes}
    with TorchDistWriter(directory) as writer:
        for key, tensor in tensors.items():
            if tensor is not None:
                writer.write(key, from_torch(tensor))
        writer.finish(1)


def test_a_left_over_source_tensor_is_named(hf: Path, tmp_path: Path) -> None:
    edit_tensors(hf, {"model.layers.4.mlp.up_proj.weight": torch.zeros(2), "score.weight": torch.zeros(2)})
    message = refused(hf, tmp_path)
    assert "does not imply: model.layers.4.mlp.up_proj.weight, score.weight" in message


def test_a_missing_source_tensor_is_named(hf: Path, tmp_path: Path) -> None:
    edit_tensors(hf, {"model.layers.1.self_attn.k_proj.bias": None})
    assert "lacks tensors that its config.json implies: model.layers.1.self_attn.k_proj.bias" in refused(hf, tmp_path)


def test_a_missing_output_layer_is_an_error_unless_tied(hf: Path, tmp_path: Path) -> None:
    edit_tensors(hf, {"lm_head.weight": None})
    assert "lm_head.weight" in refused(hf, tmp_path)
    edit_config(hf, tie_word_embeddings=True)
    convert_hf_to_mcore(hf, tmp_path / "result")


def test_a_tied_output_layer_that_differs_from_the_embedding_is_refused(hf: Path, tmp_path: Path) -> None:
    edit_config(hf, tie_word_embeddings=True)
    assert "lm_head.weight differs from model.embed_tokens.weight" in refused(hf, tmp_path)


@pytest.mark.parametrize(
    "changes", [{"intermediate_size": 100}, {"num_key_value_heads": 4}, {"vocab_size": 128}, {"head_dim": 32}]
)
def test_tensors_of_another_shape_than_the_config_says_are_refused(
    hf: Path, tmp_path: Path, changes: dict[str, int]
) -> None:
    edit_config(hf, **changes)
    assert "config.json implies" in refused(hf, tmp_path)


def test_a_config_of_another_family_is_refused(hf: Path, tmp_path: Path) -> None:
    config = json.loads((hf / "config.json").read_text())
    edit_config(hf, model_type="qwen3", architectures=["Qwen3ForCausalLM"])
    assert "q_norm.weight" in refused(hf, tmp_path)
    (hf / "config.json").write_text(json.dumps(config))
    assert "of family 'qwen2', not 'llama'" in refused(hf, tmp_path, family="llama")
    assert "did you mean 'llama'" in refused(hf, tmp_path, family="lama")


def test_an_unknown_config_field_is_ignored_when_asked_and_noted_for_whoever_reads_the_result(
    hf: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    edit_config(hf, some_new_feature=3, another_one={"a": 1})
    arguments = ["--load-model-type", "hf", "--save-model-type", "mcore"]
    arguments += ["--load-dir", str(hf), "--save-dir", str(tmp_path / "mcore"), "--ignore-config-field", "another_one"]
    assert main(arguments) == 2
    assert "add --ignore-config-field some_new_feature" in capfd.readouterr().err
    assert main([*arguments, "--ignore-config-field", "some_new_feature"]) == 0
    written = latest_iteration_dir(tmp_path / "mcore")
    described = json.loads((written / "mindllm.json").read_text())
    assert described["ignored_config_fields"] == ["another_one", "some_new_feature"]
    assert described["provenance"]["ignored_config_fields"] == ["another_one", "some_new_feature"]
    assert read_checkpoint_info(written).ignored_config_fields == ("another_one", "some_new_feature")
    back = convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "back", verify=True)
    assert (back / "config.json").read_bytes() == (hf / "config.json").read_bytes()
    again = refused(tmp_path / "mcore", tmp_path, ignored_config_fields=("another_one",))
    assert "--ignore-config-field another_one is for a config.json that is read for the first time" in again


def test_layers_of_different_dtypes_are_refused(hf: Path, tmp_path: Path) -> None:
    name = "model.layers.2.mlp.down_proj.weight"
    edit_tensors(hf, {name: read_all(hf)[name].bfloat16()})
    assert "megatron-core keeps them in one tensor" in refused(hf, tmp_path)


def test_weights_that_are_not_floating_point_are_refused(hf: Path, tmp_path: Path) -> None:
    edit_tensors(hf, {"model.norm.weight": torch.ones(64, dtype=torch.int8)})
    assert "model.norm.weight is int8" in refused(hf, tmp_path)


def test_nan_is_reported_when_verifying(hf: Path, tmp_path: Path) -> None:
    edit_tensors(hf, {"model.norm.weight": torch.full((64,), torch.nan)})
    assert "model.norm.weight in" in refused(hf, tmp_path, verify=True)
    convert_hf_to_mcore(hf, tmp_path / "mcore")
    assert "decoder.final_layernorm.weight" in refused(tmp_path / "mcore", tmp_path, verify=True)


def test_a_parallel_size_that_does_not_fit_is_refused_with_the_nearest_that_do(hf: Path, tmp_path: Path) -> None:
    message = refused(hf, tmp_path, tensor_parallel_size=3)
    assert "3 does not divide num_attention_heads 4, num_key_value_heads 2" in message and "[1, 2, 4]" in message
    message = refused(hf, tmp_path, pipeline_parallel_size=3)
    assert "3 does not divide num_layers 4; the nearest that do are [1, 2, 4]" in message


def test_a_save_directory_in_use_is_left_alone(hf: Path, mcore: Path, tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.mkdir()
    convert_hf_to_mcore(hf, used)  # an empty directory may be there
    before = sorted(used.rglob("*"))
    for convert, source in ((convert_hf_to_mcore, hf), (convert_mcore_to_hf, mcore)):
        with pytest.raises(UserError, match="used exists and is not empty"):
            convert(source, used)
    assert sorted(used.rglob("*")) == before and not list(tmp_path.glob("used.tmp*"))


def test_a_disk_too_small_is_noticed_before_writing(hf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10))
    assert "10 bytes free" in refused(hf, tmp_path)


@pytest.mark.parametrize(
    ("direction", "options"),
    [
        ("hf", []),
        ("hf", ["--ckpt-format", "torch"]),
        ("hf", ["--workers", "2"]),
        ("mcore", []),
        ("mcore", ["--workers", "2"]),
    ],
)
def test_a_disk_that_fills_up_while_writing_leaves_nothing(
    hf: Path, mcore: Path, tmp_path: Path, direction: str, options: list[str]
) -> None:
    other = "mcore" if direction == "hf" else "hf"
    source = hf if direction == "hf" else mcore
    paths = ["--load-dir", str(source), "--save-dir", str(tmp_path / "result")]
    code = (
        "import resource, signal, sys; from mindllm.convert.cli import main;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000));"
        f"sys.exit(main({['--load-model-type', direction, '--save-model-type', other, *paths, *options]!r}))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2, result.stderr
    limit = r"File too large; the file system or `ulimit -f` allows no larger files\n"
    assert re.fullmatch(rf"error: {re.escape(str(tmp_path))}/result\S*: {limit}", result.stderr), result.stderr
    assert not list(tmp_path.glob("result*"))


def test_weights_that_may_not_be_read_are_named(hf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = next(hf.glob("*.safetensors"))
    weights.unlink()
    weights.symlink_to("/proc/self/mem")  # opens, and gives an error when it is read
    paths = ["--load-dir", str(hf), "--save-dir", str(tmp_path / "result")]
    assert main(["--load-model-type", "hf", "--save-model-type", "mcore", *paths]) == 2
    assert str(weights) in (stderr := capsys.readouterr().err) and stderr.count("\n") == 1
    assert not list(tmp_path.glob("result*"))


def test_a_left_over_or_missing_mcore_tensor_is_named(mcore: Path, tmp_path: Path) -> None:
    directory = latest_iteration_dir(mcore)
    rewrite(directory, {"decoder.layers.mlp.extra.weight": torch.zeros(4, 2), "optimizer.state.x": torch.zeros(3)})
    message = refused(mcore, tmp_path)
    assert message.endswith("does not imply: decoder.layers.mlp.extra.weight")
    rewrite(directory, {"decoder.layers.mlp.extra.weight": None, "output_layer.weight": None})
    assert refused(mcore, tmp_path).endswith("implies: output_layer.weight")


def test_integers_in_an_mcore_checkpoint_are_refused(mcore: Path, tmp_path: Path) -> None:
    key = "decoder.final_layernorm.weight"
    rewrite(latest_iteration_dir(mcore), {key: torch.ones(64, dtype=torch.int16)})
    assert f"{key} is int16; weights of fp32, bf16 and fp16 can be converted" in refused(mcore, tmp_path)


def test_an_mcore_checkpoint_of_another_architecture_is_refused(mcore: Path, tmp_path: Path) -> None:
    hf = latest_iteration_dir(mcore) / "hf"
    edit_config(hf, num_hidden_layers=5, layer_types=None)
    assert "has shape (4, 64); hf/config.json implies (5, 64)" in refused(mcore, tmp_path)
    edit_config(hf, num_hidden_layers=4, vocab_size=102)
    assert "vocab_size" in refused(mcore, tmp_path)


def test_checkpoint_directories_that_are_none_are_refused(mcore: Path, hf: Path, tmp_path: Path) -> None:
    assert "has no iteration 7 (iter_0000007)" in refused(mcore, tmp_path, iteration=7)
    assert "give the directory above it" in refused(latest_iteration_dir(mcore), tmp_path)
    with pytest.raises(UserError, match="convert it with convert_ckpt.py first"):
        convert_mcore_to_hf(hf, tmp_path / "result")
    (mcore / "latest_checkpointed_iteration.txt").write_text("3")
    assert "names iteration 3, but" in refused(mcore, tmp_path)
    (mcore / "latest_checkpointed_iteration.txt").write_text("final")
    assert "holds 'final'" in refused(mcore, tmp_path)
    with pytest.raises(UserError, match="absent is not a checkpoint directory, it does not exist"):
        convert_mcore_to_hf(tmp_path / "absent", tmp_path / "result")


def test_the_checkpoints_below_a_run_directory_are_named(hf: Path, tmp_path: Path) -> None:
    saved = tmp_path / "run" / "checkpoints"
    for role in ("actor", "critic"):
        convert_hf_to_mcore(hf, saved / role)
    message = refused(tmp_path / "run", tmp_path)
    assert message.endswith(f"there is one in {saved}/actor and in {saved}/critic")


def test_the_release_of_a_megatron_checkpoint_is_read(mcore: Path, hf: Path, tmp_path: Path) -> None:
    latest_iteration_dir(mcore).rename(mcore / "release")
    (mcore / "latest_checkpointed_iteration.txt").write_text("release")
    assert_same_tensors(read_all(hf), read_all(convert_mcore_to_hf(mcore, tmp_path / "back")))
    with pytest.raises(UserError, match="give the directory above it"):
        convert_mcore_to_hf(mcore / "release", tmp_path / "result")


def test_broken_checkpoint_descriptions_are_refused(mcore: Path, tmp_path: Path) -> None:
    path = latest_iteration_dir(mcore) / "mindllm.json"
    values = json.loads(path.read_text())
    for changes, said in (({"format_version": 2}, "format_version 2"), ({"family": "llama"}, "says family = 'llama'")):
        path.write_text(json.dumps({**values, **changes}))
        assert said in refused(mcore, tmp_path)
    path.write_text("{}")
    assert "mindllm.json is broken: it has no key 'format_version'" in refused(mcore, tmp_path)
    path.write_text("[")
    assert "mindllm.json is broken: Expecting value" in refused(mcore, tmp_path)
    path.unlink()
    assert "was not written by mindllm" in refused(mcore, tmp_path)


def test_kill_minus_nine_at_ten_moments_leaves_nothing_under_the_final_name(tmp_path: Path) -> None:
    source = make_hf_model(tmp_path / "hf", "llama", hidden_size=512, intermediate_size=2048, num_hidden_layers=6)
    arguments = ["--load-model-type", "hf", "--save-model-type", "mcore", "--load-dir", str(source)]
    num_killed = 0
    for number in range(10):
        target = tmp_path / f"result{number}"
        command = [sys.executable, "convert_ckpt.py", *arguments, "--save-dir", str(target)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        staged = tmp_path / f"{target.name}.tmp-{process.pid}"
        while not any(staged.rglob("*.distcp")) and process.poll() is None:
            time.sleep(0.001)
        time.sleep(0.01 * number * random.random())
        os.kill(process.pid, signal.SIGKILL)
        status = process.wait()
        assert status in (0, -signal.SIGKILL)  # it may have been done before
        assert staged.exists() != target.exists()
        assert not target.exists() or read_checkpoint_info(latest_iteration_dir(target))  # killed after its last step
        num_killed += staged.exists()
    assert num_killed >= 5
    shutil.rmtree(tmp_path / "result0", ignore_errors=True)
    assert main([*arguments, "--save-dir", str(tmp_path / "result0")]) == 0

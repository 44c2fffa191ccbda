"""docs/your_own_model.md, followed to the letter: its files written, its commands run, with a tiny model."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from mindllm import posttrain
from mindllm.config import compose_config
from mindllm.convert.cli import main as convert
from mindllm.preprocess.cli import main as preprocess
from tests.e2e.runs import run_here

PAGE = (Path(__file__).resolve().parents[2] / "docs/your_own_model.md").read_text("utf-8")
PROGRAMS = {"convert_ckpt.py": convert, "preprocess_data.py": preprocess, "posttrain_gpt.py": posttrain.main}
FILES = dict(re.findall(r"`(my/[\w.]+)`[^`]*?:\n\n```\w+\n(.*?)```", PAGE, re.S))
COMMANDS = [
    shlex.split(line)
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.S)
    for line in block.replace("\\\n", " ").splitlines()
]
SCRIPT = re.search(r"```python\n(from transformers.*?)```", PAGE, re.S)[1]


def write_model(directory: Path) -> None:
    """A Llama of 0.1 million parameters whose tokenizer knows every byte and has a chat template."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate([*marks, *alphabet])}, []))
    tokenizer.add_special_tokens(marks)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        chat_template="{% for message in messages %}"
        "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ).save_pretrained(directory)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(tokenizer.get_vocab()), max_position_embeddings=256, eos_token_id=2, **sizes)
    LlamaForCausalLM(config).save_pretrained(directory)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder in which all of the page was done, and what each command printed."""
    root = tmp_path_factory.mktemp("own")
    write_model(root / "models/my-model")
    (root / "my").mkdir()
    for name, content in FILES.items():
        (root / name).write_text(content)
    outputs = []
    with contextlib.chdir(root):
        for python, program, *arguments in COMMANDS:
            assert python == "python"
            # Where the page measures a real model, two iterations of a tiny one do.
            shorter = ["training.train_iters=2"] if program == "posttrain_gpt.py" else []
            outcome = run_here(PROGRAMS[program], [*arguments, *shorter])
            assert outcome.status == 0, f"{program} {arguments}: {outcome.err}"
            outputs.append(outcome.out)
    return root, outputs


def test_the_page_has_every_file_and_every_program():
    assert set(FILES) == {"my/train.jsonl", "my/sft.yaml", "my/reward.py", "my/grpo.yaml"}
    assert {program for _, program, *_ in COMMANDS} == set(PROGRAMS)


def test_the_preview_shows_the_chat_template_and_the_trained_answer(printed):
    _, outputs = printed
    preview = next(out for (_, *command), out in zip(COMMANDS, outputs, strict=True) if "--preview" in command)
    assert "»Honey.<|im_end|>«" in preview


def test_each_run_is_checked_first_and_ends_in_a_hugging_face_model(printed):
    root, outputs = printed
    trained = [(command, out) for command, out in zip(COMMANDS, outputs, strict=True) if "posttrain_gpt.py" in command]
    assert ["--check" in command for command, _ in trained] == [True, False, True, False]
    assert all("ok: memory: up to about" in out for _, out in trained[::2])
    assert all("finished: 2 iterations" in out and "peak memory of a rank" in out for _, out in trained[1::2])
    for name in ("my-model-sft", "my-model-grpo"):
        assert (root / "models" / name / "model.safetensors").is_file()


def test_what_the_page_says_to_look_at_is_there(printed):
    root, _ = printed
    last = json.loads((root / "runs/my-grpo/metrics.jsonl").read_text().splitlines()[-1])
    looked_at = re.findall(r"^\| `([\w/]+)` \|", PAGE, re.M)
    assert len(looked_at) >= 5 and set(looked_at) <= last.keys()
    assert list((root / "runs/my-grpo/samples").iterdir())


def test_the_pages_reward_prefers_the_answer_alone():
    names: dict = {}
    exec(FILES["my/reward.py"], names)
    answers = ["Honey.", "They make honey.", "Wax."]
    assert names["short"](answers, ["Honey."] * 3) == [1.0, pytest.approx(1 / 3), 0.0]


def test_the_exported_model_answers_in_transformers(printed):
    root, _ = printed
    out = io.StringIO()
    with contextlib.chdir(root), contextlib.redirect_stdout(out):
        exec(SCRIPT, {})
    assert out.getvalue().endswith("\n")


def test_the_layout_that_the_page_proposes_for_two_processes_is_valid(printed):
    root, _ = printed
    overrides = re.search(r"^```\n((?:[\w.]+=\w+ ?)+)\n```", PAGE, re.M)[1].split()
    with contextlib.chdir(root):
        config = compose_config("my/grpo.yaml", overrides)
    assert (config.training.executor, config.data_parallel_size()) == ("ray", 2)
    assert yaml.safe_load(FILES["my/grpo.yaml"])["training"]["executor"] == "inline"

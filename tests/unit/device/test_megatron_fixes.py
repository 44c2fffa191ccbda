"""A megatron-core that the corrections were not tested with is refused before anything uses it."""

from mindllm.device import megatron_fixes

import megatron.core
import pytest

from mindllm import posttrain
from mindllm.errors import UserError


def test_the_installed_version_and_a_local_build_of_it_are_accepted():
    megatron_fixes.check_version(megatron.core.__version__, "site-packages")
    megatron_fixes.check_version("0.16.1+git.abc123", "site-packages")


@pytest.mark.parametrize("version", ["0.16.0", "0.16.2", "0.17.0", "0.15.3", "0.16.1rc0"])
def test_another_version_is_refused_by_name_with_the_remedy(version: str):
    with pytest.raises(UserError) as caught:
        megatron_fixes.check_version(version, "/opt/Megatron-LM/megatron/core")
    message = str(caught.value)
    assert f"megatron-core {version} in /opt/Megatron-LM/megatron/core" in message
    assert "pip install megatron-core==0.16.1" in message


def test_a_run_ends_with_that_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(megatron.core, "__version__", "0.17.0")
    monkeypatch.setattr("mindllm.preflight.check", lambda config: megatron_fixes.apply.__wrapped__())
    assert posttrain.main(["--config-name", "sft_trainer_quickstart", "--check"]) == 2
    assert capsys.readouterr().err.startswith("error: megatron-core 0.17.0 in ")

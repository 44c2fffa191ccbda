import json
from dataclasses import dataclass

import pytest

from mindllm.algorithms import AdaptiveKLController, FixedKLController, make_kl_controller
from tests.vectors import assert_close, load_cases


@dataclass
class Settings:
    type: str
    kl_coef: float = 0.05
    target_kl: float = 0.1
    horizon: int = 100


@pytest.mark.parametrize("case", load_cases("kl_controller"), ids=lambda c: c["id"])
def test_an_adaptive_coefficient_moves_as_recorded(case):
    inputs, values = case["inputs"], []
    controller = AdaptiveKLController(inputs["init_kl_coef"], inputs["target"], inputs["horizon"])
    for current_kl, n_steps in inputs["updates"]:
        controller.update(current_kl, n_steps)
        values.append(controller.value)
    assert_close(case, values, case["expected"]["values"])


def test_a_resumed_controller_goes_on_where_it_stopped():
    one = make_kl_controller(Settings("adaptive"))
    one.update(0.2, 10)
    other = make_kl_controller(Settings("adaptive"))
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert other.value == one.value != 0.05
    one.update(0.01, 10)
    other.update(0.01, 10)
    assert other.value == one.value


def test_a_fixed_coefficient_stays_as_it_is_written_also_on_a_resume():
    controller = make_kl_controller(Settings("fixed", kl_coef=0.3))
    controller.update(100.0, 64)
    controller.load_state_dict({"kl_coef": 0.9})
    assert controller.value == 0.3


def test_a_run_that_becomes_adaptive_begins_with_the_written_coefficient():
    controller = AdaptiveKLController(0.3, 0.1, 100)
    controller.load_state_dict(FixedKLController(0.9).state_dict())
    assert controller.value == 0.3


def test_unknown_types_and_impossible_targets_are_refused():
    with pytest.raises(ValueError, match="unknown KL controller 'adaptve'"):
        make_kl_controller(Settings("adaptve"))
    with pytest.raises(ValueError, match="must be positive"):
        make_kl_controller(Settings("adaptive", target_kl=0.0))

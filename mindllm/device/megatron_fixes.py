"""Corrections to megatron-core 0.16.1 on paths without Transformer Engine and apex.

Each is tested by a resume test. Another version may need other corrections, or be damaged by these, so it is refused.
"""

import functools
from typing import Any

import torch

from mindllm.errors import UserError

_TESTED_VERSION = "0.16.1"


def _fix_distributed_optimizer_reload() -> None:
    """``DistributedOptimizer`` on ``torch.optim.AdamW`` cannot save a fresh state nor reload a saved one.

    Three causes: the state of a fresh optimizer is empty where one step value is asserted; loading rewrites the state
    dictionary without its ``step`` (KeyError at the next step); and after a load one ``step`` tensor is shared by all
    parameters, so that a step advances it once per parameter.
    """
    from megatron.core.optimizer import distrib_optimizer

    if distrib_optimizer.HAVE_APEX_OR_TE:
        return
    cls = distrib_optimizer.DistributedOptimizer
    original_set = cls._set_main_param_and_optimizer_states
    original_load = cls.load_state_dict
    original_sharded = cls.sharded_state_dict

    def set_states(self: Any, model_param: torch.nn.Parameter, tensors: dict[str, torch.Tensor]) -> None:
        group, order = self.model_param_group_index_map[model_param]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        kept = {key: state[key] for key in ("step",) if key in state}
        original_set(self, model_param, {**kept, **tensors})

    def load_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
        original_load(self, state_dict)
        for state in self.optimizer.state.values():
            if "step" in state:
                state["step"] = state["step"].clone()

    def sharded_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        for group in self.optimizer.param_groups:
            for param in group["params"]:
                if not self.optimizer.state[param]:
                    moments = {name: torch.zeros_like(param) for name in ("exp_avg", "exp_avg_sq")}
                    self.optimizer.state[param] = {"step": torch.tensor(0.0), **moments}
        return original_sharded(self, *args, **kwargs)

    cls._set_main_param_and_optimizer_states = set_states
    cls.load_state_dict = load_state_dict
    cls.sharded_state_dict = sharded_state_dict


def _describe_optimizer_state_without_copies() -> None:
    """See ``optimizer_state``."""
    from mindllm.device import optimizer_state

    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    original = DistributedOptimizer.sharded_param_state_fully_reshardable
    DistributedOptimizer.sharded_param_state_fully_reshardable = optimizer_state.describe(original)


@functools.cache
def apply() -> None:
    """Apply the corrections, once per process.

    Raises:
        UserError: megatron-core is another version than the one they were written for and tested with.
    """
    import megatron.core

    check_version(megatron.core.__version__, megatron.core.__path__[0])
    _fix_distributed_optimizer_reload()
    _describe_optimizer_state_without_copies()


def check_version(version: str, location: str) -> None:
    """Refuse a megatron-core whose public version (``0.16.1`` of ``0.16.1+abc``) was not tested. Raises UserError."""
    if version.partition("+")[0] != _TESTED_VERSION:
        raise UserError(
            f"megatron-core {version} in {location} was not tested with this mindllm, which corrects "
            f"{_TESTED_VERSION} in places; python -m pip install megatron-core=={_TESTED_VERSION}, and take any "
            "Megatron-LM off PYTHONPATH"
        )

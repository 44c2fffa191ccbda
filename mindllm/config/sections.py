"""Sections ``algorithm``, ``reward`` and ``resource_pool``."""

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from mindllm.config.base import Float, Int, Section

KLEstimator = Literal["kl", "abs", "mse", "low_var_kl"]
KL_ALIASES = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}
SHARED: Final = "actor_rollout"


def _kl_name(value: object) -> object:
    return KL_ALIASES.get(value, value) if isinstance(value, str) else value


KLName = Annotated[KLEstimator, BeforeValidator(_kl_name)]


class KLControl(Section):
    """Coefficient of the KL term in the reward."""

    type: Literal["fixed"] = Field(default="fixed", description="`fixed`: the coefficient stays as it is.")
    kl_coef: Float = Field(default=0.0, ge=0, description="Weight of the KL term in the reward, per token.")


class AlgorithmConfig(Section):
    """Advantage estimator and KL terms of GRPO."""

    adv_estimator: Literal["group_norm", "group_mean"] = Field(
        default="group_norm",
        description="Advantage: reward minus the group's mean, divided by its standard deviation (`group_norm`) "
        "or not (`group_mean`).",
    )
    use_kl_loss: bool = Field(default=False, description="Add a KL term against the reference to the loss.")
    kl_loss_coef: Float = Field(default=0.0, ge=0, description="Weight of the KL term in the loss.")
    kl_loss_type: KLName = Field(
        default="low_var_kl", description="Estimator in the loss: `kl` (k1), `abs`, `mse` (k2), `low_var_kl` (k3)."
    )
    use_kl_in_reward: bool = Field(
        default=False,
        description="Subtract a KL term against the reference from the reward.",
        json_schema_extra={"default_text": "`true` if `kl_ctrl.kl_coef` > 0 and `use_kl_loss` is not written"},
    )
    kl_penalty: KLName = Field(
        default="kl", description="Estimator in the reward: `kl` (k1), `abs`, `mse` (k2), `low_var_kl` (k3)."
    )
    kl_ctrl: KLControl = Field(default=KLControl(), description="Coefficient of the KL term in the reward.")

    @property
    def needs_reference(self) -> bool:
        """Whether any term reads the reference model's log-probs."""
        return (self.use_kl_loss and self.kl_loss_coef > 0) or (self.use_kl_in_reward and self.kl_ctrl.kl_coef > 0)


def _function_list(value: object) -> object:
    """Read ``accuracy,format`` and ``[accuracy, format]`` as functions of weight 1."""
    if isinstance(value, str):
        value = [item.strip() for item in value.split(",") if item.strip()]
    if isinstance(value, list):
        return [{"name": item} if isinstance(item, str) else item for item in value]
    return value


class RewardFunction(Section):
    """One rule reward and its weight in the sum."""

    name: str = Field(min_length=1, description="A built-in reward, or the function's name in the file at `path`.")
    weight: Float = Field(default=1.0, description="Factor of this reward in the sum.")
    path: str | None = Field(
        default=None, min_length=1, description="Python file with the function; unset: a built-in."
    )
    args: dict[str, Any] = Field(default={}, description="Keyword arguments passed to the function.")


class RewardConfig(Section):
    """Rule rewards and what happens when one fails."""

    functions: Annotated[list[RewardFunction], BeforeValidator(_function_list)] = Field(
        default=[], description="Rewards that are summed: names, or items with `name`, `weight`, `path`, `args`."
    )
    on_error: Literal["fail", "zero", "drop"] = Field(
        default="fail",
        description="A reward that raises or times out: stop the run, count as 0, or drop the sample.",
    )
    timeout_s: Float = Field(default=5.0, gt=0, description="Time limit of one item, in seconds.")
    num_workers: Int = Field(default=2, ge=1, description="Processes that compute rewards.")


def _processes(value: object) -> object:
    """Check a number of processes or a list with one number per node; a role's name passes through."""
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    counts = value if isinstance(value, list) else [value]
    if value != SHARED and not (counts and all(type(count) is int and count >= 1 for count in counts)):
        raise ValueError(f"{value!r} is not a number of processes (1 or more) or a list with one number per node")
    return value


class ResourcePool(Section):
    """Processes of each role: a number, or a list with one number per node."""

    actor_rollout: Annotated[int | list[int], BeforeValidator(_processes)] = Field(
        default=1,
        description="Processes that train and generate: a number, or a list with one number per node.",
        json_schema_extra={"default_text": "TP x PP"},
    )
    ref: Annotated[int | list[int] | Literal["actor_rollout"], BeforeValidator(_processes)] = Field(
        default=SHARED,
        description="Processes of the reference model; `actor_rollout` shares the actor's; `[]` is none.",
        json_schema_extra={"default_text": "`actor_rollout` if the layouts are equal, else TP x PP"},
    )

    @property
    def ref_shares_actor(self) -> bool:
        """Whether the reference lives in the actor's processes."""
        return self.ref == SHARED

    def per_node(self, role: Literal["actor_rollout", "ref"]) -> list[int]:
        """Processes of ``role`` on each node; one entry when a plain number was written, which any node may serve."""
        value = self.actor_rollout if role == SHARED or self.ref == SHARED else self.ref
        return [value] if isinstance(value, int) else [int(count) for count in value]

    def world_size(self, role: Literal["actor_rollout", "ref"]) -> int:
        """Processes of ``role`` over all nodes."""
        return sum(self.per_node(role))

"""Section ``algorithm``, and the rule rewards of section ``reward``."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from mindllm.config.base import Float, Int, Section
from mindllm.config.paths import LocalPath

KLEstimator = Literal["kl", "abs", "mse", "low_var_kl"]
KL_ALIASES = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}
WhitenScope = Literal["step", "minibatch"]


def _kl_name(value: object) -> object:
    return KL_ALIASES.get(value, value) if isinstance(value, str) else value


KLName = Annotated[KLEstimator, BeforeValidator(_kl_name)]


class KLControl(Section):
    """Coefficient of the KL term in the reward."""

    type: Literal["fixed", "adaptive"] = Field(
        default="fixed",
        description="`fixed`: the coefficient stays as it is; `adaptive` (stage `ray_ppo`): it follows `target_kl`.",
    )
    kl_coef: Float = Field(
        default=0.0,
        ge=0,
        description="Weight of the KL term in the reward, per token; `adaptive` begins with it.",
        json_schema_extra={"default_text": "`0.0`; stage `ray_ppo`: `0.05`"},
    )
    target_kl: Float = Field(
        default=0.1, gt=0, description="KL per token that an `adaptive` coefficient steers towards."
    )
    horizon: Int = Field(
        default=10000, ge=1, description="Responses over which an `adaptive` coefficient reacts; more is slower."
    )


class AlgorithmConfig(Section):
    """Advantage estimator and KL terms."""

    adv_estimator: Literal["gae", "group_norm", "group_mean"] = Field(
        default="group_norm",
        description="Advantage: generalised advantage estimation with a critic (`gae`, stage `ray_ppo`), or reward "
        "minus the group's mean, divided by its standard deviation (`group_norm`) or not (`group_mean`).",
        json_schema_extra={"default_text": "`group_norm`; stage `ray_ppo`: `gae`"},
    )
    gamma: Float = Field(default=1.0, ge=0, le=1, description="`gae`: discount from token to token.")
    lam: Float = Field(default=0.95, ge=0, le=1, description="`gae`: 1 is Monte Carlo, 0 is one step.")
    missing_eos_penalty: Float = Field(
        default=0.0,
        ge=0,
        description="`gae`: subtracted from the score of a response that the length limit cut.",
    )
    advantage_whiten: bool = Field(
        default=False,
        description="`gae`: bring advantages to mean 0 and deviation 1.",
        json_schema_extra={"default_text": "`true`; not read by `ray_grpo`"},
    )
    whiten_scope: WhitenScope = Field(
        default="step", description="Tokens whitened together: an iteration's (`step`) or a `minibatch`'s."
    )
    whiten_rewards: bool = Field(
        default=False, description="`gae`: bring the tokens' rewards to deviation 1, keeping their mean."
    )
    bootstrap_truncated: bool = Field(
        default=False,
        description="`gae`: a response that the length limit cut goes on with the critic's value of its last state, "
        "instead of 0.",
    )
    use_kl_loss: bool = Field(default=False, description="Add a KL term against the reference to the loss.")
    kl_loss_coef: Float = Field(default=0.0, ge=0, description="Weight of the KL term in the loss.")
    kl_loss_type: KLName = Field(
        default="low_var_kl", description="Estimator in the loss: `kl` (k1), `abs`, `mse` (k2), `low_var_kl` (k3)."
    )
    use_kl_in_reward: bool = Field(
        default=False,
        description="Subtract a KL term against the reference from the reward.",
        json_schema_extra={"default_text": "`true` if `kl_ctrl.kl_coef` > 0 and `use_kl_loss` is false"},
    )
    kl_penalty: KLName = Field(
        default="kl", description="Estimator in the reward: `kl` (k1), `abs`, `mse` (k2), `low_var_kl` (k3)."
    )
    kl_ctrl: KLControl = Field(default=KLControl(), description="Coefficient of the KL term in the reward.")

    @property
    def needs_reference(self) -> bool:
        """Whether any term reads the reference model's log-probs."""
        return (self.use_kl_loss and self.kl_loss_coef > 0) or (self.use_kl_in_reward and self.kl_ctrl.kl_coef > 0)

    def whitens(self, scope: WhitenScope) -> bool:
        """Whether advantages are whitened over the tokens of ``scope``."""
        return self.advantage_whiten and self.whiten_scope == scope


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
    path: LocalPath | None = Field(default=None, description="Python file with the function; unset: a built-in.")
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

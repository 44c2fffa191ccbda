"""Coefficient of the KL term in the reward, fixed or steered towards a target."""

from typing import Protocol

# The error counts up to this share, so that one bad batch cannot move the coefficient far.
_MAX_ERROR = 0.2


class KLControlSettings(Protocol):
    """What ``make_kl_controller`` reads; keys of ``algorithm.kl_ctrl``."""

    @property
    def type(self) -> str:
        """``fixed`` or ``adaptive``."""

    @property
    def kl_coef(self) -> float:
        """The coefficient, or its first value."""

    @property
    def target_kl(self) -> float:
        """The KL that an adaptive coefficient steers towards."""

    @property
    def horizon(self) -> int:
        """Sequences over which an adaptive coefficient reacts."""


class KLController(Protocol):
    """A coefficient that hears of the KL of every batch and survives a resume."""

    @property
    def value(self) -> float:
        """The coefficient now."""

    def update(self, current_kl: float, n_steps: int) -> None:
        """Take note of the KL of a batch of ``n_steps`` sequences."""

    def state_dict(self) -> dict[str, float]:
        """What a resumed run needs to go on; JSON."""

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take up again what ``state_dict`` gave, of either kind of controller."""


class FixedKLController:
    """A coefficient that stays as the user wrote it, also where a resumed run was written with another."""

    def __init__(self, kl_coef: float) -> None:
        self._value = kl_coef

    @property
    def value(self) -> float:
        """The coefficient."""
        return self._value

    def update(self, current_kl: float, n_steps: int) -> None:
        """Nothing changes."""

    def state_dict(self) -> dict[str, float]:
        """Nothing is kept: the configuration says it all."""
        return {}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Nothing is read."""


class AdaptiveKLController:
    r"""A coefficient that grows while the KL is above its target and shrinks while it is below.

    .. math::
        e = \mathrm{clip}\left(\frac{\mathrm{KL}}{\mathrm{KL}_{target}} - 1,\; -0.2,\; 0.2\right), \qquad
        \beta \leftarrow \beta \left(1 + e\, \frac{n}{horizon}\right)

    after a batch of n sequences (https://arxiv.org/abs/1909.08593, section 2.2).
    """

    def __init__(self, kl_coef: float, target_kl: float, horizon: int) -> None:
        """
        Args:
            kl_coef: the first coefficient.
            target_kl: in the unit that ``update`` is told.
            horizon: sequences.

        Raises:
            ValueError: the target or the horizon is not positive.
        """
        if not (target_kl > 0 and horizon > 0):
            raise ValueError(f"target_kl ({target_kl}) and horizon ({horizon}) must be positive")
        self._value, self._target, self._horizon = kl_coef, target_kl, horizon

    @property
    def value(self) -> float:
        """The coefficient now."""
        return self._value

    def update(self, current_kl: float, n_steps: int) -> None:
        """Adapt to the mean KL of a batch of ``n_steps`` sequences."""
        error = min(max(current_kl / self._target - 1, -_MAX_ERROR), _MAX_ERROR)
        self._value *= 1 + error * n_steps / self._horizon

    def state_dict(self) -> dict[str, float]:
        """The coefficient; target and horizon are the configuration's."""
        return {"kl_coef": self._value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on from a saved coefficient; the state of a fixed one has none, and the written one counts."""
        self._value = state.get("kl_coef", self._value)


def make_kl_controller(settings: KLControlSettings) -> KLController:
    """Return the controller that ``settings`` ask for. Raises ValueError on an unknown type."""
    if settings.type == "fixed":
        return FixedKLController(settings.kl_coef)
    if settings.type == "adaptive":
        return AdaptiveKLController(settings.kl_coef, settings.target_kl, settings.horizon)
    raise ValueError(f"unknown KL controller '{settings.type}', allowed: fixed, adaptive")

"""Section ``resource_pool``: the processes of each role."""

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from mindllm.config.base import Section

PoolRole = Literal["actor_rollout", "ref", "critic", "reward"]
SHARED: Final = "actor_rollout"


def _processes(value: object) -> object:
    """Check a number of processes or a list with one number per node."""
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    counts = value if isinstance(value, list) else [value]
    if not (counts and all(type(count) is int and count >= 1 for count in counts)):
        raise ValueError(f"{value!r} is not a number of processes (1 or more) or a list with one number per node")
    return value


def _shared_or_processes(value: object) -> object:
    """As ``_processes``; a role's name passes through to its own check."""
    return value if isinstance(value, str) and not value.strip().isdigit() else _processes(value)


OwnProcesses = Annotated[int | list[int], BeforeValidator(_processes)]
Processes = Annotated[int | list[int] | PoolRole, BeforeValidator(_shared_or_processes)]


class ResourcePool(Section):
    """Processes of each role: a number, a list with one number per node, or the role whose processes it shares."""

    actor_rollout: OwnProcesses = Field(
        default=1,
        description="Processes that train and generate: a number, or a list with one number per node.",
        json_schema_extra={"default_text": "TP x PP (+ `num_gpus_for_infer`)"},
    )
    ref: Processes = Field(
        default=SHARED,
        description="Processes of the reference model, or the role it shares with; `[]` is none.",
        json_schema_extra={"default_text": "`actor_rollout` if the layouts are equal, else TP x PP"},
    )
    critic: Processes = Field(
        default=SHARED,
        description="Processes of the critic, or the role it shares with; `[]` is none.",
        json_schema_extra={"default_text": "`actor_rollout` if the layouts are equal, else TP x PP"},
    )
    reward: Processes = Field(
        default=SHARED,
        description="Processes of the reward model, or the role it shares with; `[]` is none.",
        json_schema_extra={"default_text": "`actor_rollout` if the layouts are equal, else TP x PP"},
    )

    def owner(self, role: PoolRole) -> PoolRole:
        """The role whose processes ``role`` lives in: itself, or at the end of the roles it names."""
        value = getattr(self, role)
        return self.owner(value) if isinstance(value, str) else role  # type: ignore[arg-type]

    @property
    def ref_shares_actor(self) -> bool:
        """Whether the reference lives in the actor's processes."""
        return self.owner("ref") == SHARED

    def per_node(self, role: PoolRole) -> list[int]:
        """Processes of ``role`` on each node; one entry when a plain number was written, which any node may serve.

        Of ``actor_rollout`` these are all, those that only generate included; see ``RunConfig.per_node``.
        """
        value = getattr(self, self.owner(role))
        return [value] if isinstance(value, int) else [int(count) for count in value]

    def world_size(self, role: PoolRole) -> int:
        """Processes of ``role`` over all nodes."""
        return sum(self.per_node(role))

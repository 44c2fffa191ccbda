"""Which numbers of tensor-parallel ranks a model can be split over: one rule for all who ask. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TensorParallelSizes:
    """What tensor parallelism splits, as name -> size; what is not known yet is left out.

    Every rank holds an equal part of each of ``divided``. ``query_groups`` are divided too or, where there are fewer
    than ranks, shared by as many ranks each; then ``fused_rows``, those of the projection to query, key and value, must
    divide on their own account: megatron-core's attention splits them evenly and gathers the groups afterwards.
    """

    divided: Mapping[str, int]
    query_groups: Mapping[str, int] = field(default_factory=dict)
    fused_rows: Mapping[str, int] = field(default_factory=dict)

    def obstacles(self, num_ranks: int) -> dict[str, int]:
        """Return the entries that do not allow ``num_ranks``; rows only where heads and groups would."""
        found = {name: size for name, size in self.divided.items() if size % num_ranks}
        found |= {name: size for name, size in self.query_groups.items() if size % num_ranks and num_ranks % size}
        return found or {name: size for name, size in self.fused_rows.items() if size % num_ranks}

    def allowed(self) -> list[int]:
        """Return every number of ranks that has no obstacle."""
        return [number for number in range(1, min(self.divided.values()) + 1) if not self.obstacles(number)]


def rows_of_query_key_value(num_heads: int, num_query_groups: int, head_dim: int) -> dict[str, int]:
    """Return ``fused_rows`` of a model with these sizes."""
    return {"rows of query, key and value": (num_heads + 2 * num_query_groups) * head_dim}

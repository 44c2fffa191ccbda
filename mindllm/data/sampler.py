"""Which samples come next: reshuffled each epoch, and resumable from a few numbers."""

from typing import Any

import numpy as np

from mindllm.errors import UserError

_NAMES = {
    "size": "the number of rows in data_path",
    "seed": "training.seed",
    "shuffle": "shuffling (the opposite of training.no_shuffle)",
}


class ResumableSampler:
    """Endless batches of indices. Epochs follow each other without a gap, so a batch may span two of them.

    The order of an epoch depends only on (seed, epoch, size): neither on the batch size nor on what was drawn before.
    """

    def __init__(self, size: int, batch_size: int, seed: int, shuffle: bool, allow_changed_data: bool = False) -> None:
        """Start at the first sample of epoch 0.

        Args:
            size: number of samples.
            batch_size: of them in a batch.
            seed: of the order.
            shuffle: draw an order for each epoch; without it, every epoch is in the data's own.
            allow_changed_data: take a state of another size too, and then begin with the first sample of epoch 0.

        Raises:
            UserError: no samples, or a batch size below 1.
        """
        if size < 1:
            raise UserError("the data set is empty")
        if batch_size < 1:
            raise UserError(f"the batch size must be at least 1, found {batch_size}")
        self.size = size
        self.batch_size = batch_size
        self._seed = seed
        self._shuffle = shuffle
        self._allow_changed_data = allow_changed_data
        self._consumed = 0
        self._epoch = -1
        self._order: np.ndarray = np.arange(0)

    def next_indices(self) -> list[int]:
        """The next `batch_size` indices, each in [0, size)."""
        indices: list[int] = []
        while len(indices) < self.batch_size:
            epoch, position = divmod(self._consumed, self.size)
            taken = self._order_of(epoch)[position : position + self.batch_size - len(indices)]
            indices += taken.tolist()
            self._consumed += len(taken)
        return indices

    def state_dict(self) -> dict[str, Any]:
        """Where the sampler stands, as plain JSON values."""
        return {"consumed": self._consumed, "size": self.size, "seed": self._seed, "shuffle": self._shuffle}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken.

        Raises:
            UserError: the state belongs to another data set size, seed or order.
        """
        mine = self.state_dict()
        has_other_size = self._allow_changed_data and state["size"] != self.size
        for key in ("seed", "shuffle") if has_other_size else ("size", "seed", "shuffle"):
            if state[key] != mine[key]:
                raise UserError(
                    f"cannot resume the data order: {_NAMES[key]} was {state[key]}, now it is {mine[key]}; put it "
                    "back, or write another training.run_dir"
                )
        self._consumed = 0 if has_other_size else int(state["consumed"])

    def _order_of(self, epoch: int) -> np.ndarray:
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = _permutation(self.size, self._seed, epoch) if self._shuffle else np.arange(self.size)
        return self._order


def _permutation(size: int, seed: int, epoch: int) -> np.ndarray:
    # Sorting raw Philox words: numpy keeps bit streams fixed for ever, but not what permutation() makes of them.
    words = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(size)
    return np.argsort(words, kind="stable")

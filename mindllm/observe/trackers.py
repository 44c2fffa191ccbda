"""Where scalars are also sent. A tracker never ends a run: it warns once and is left out from then on."""

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

logger = logging.getLogger(__name__)

_WANDB_TIMEOUT_S = 30


class Tracker(Protocol):
    """A receiver of the scalars of an iteration."""

    def log(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """Send the scalars."""

    def close(self) -> None:
        """Send what is buffered."""


class TensorBoardTracker:
    """Event files in ``run_dir/tensorboard``; by tensorboard's own writer, which imports far faster than torch's."""

    def __init__(self, run_dir: Path, first_iteration: int) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._writer = EventFileWriter(str(run_dir / "tensorboard"))
        # TensorBoard hides what earlier files hold from this step on: each iteration is shown once after a resume.
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._writer.add_event(self._event(wall_time=time.time(), step=first_iteration, session_log=start))

    def log(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """Write one event with all scalars, and flush it."""
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        event = self._event(wall_time=time.time(), step=iteration, summary=self._summary(value=values))
        self._writer.add_event(event)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WandbTracker:
    """Weights & Biases; the run id is kept in ``run_dir/wandb_run_id.txt``, so that a resumed run goes on in it."""

    def __init__(self, run_dir: Path, first_iteration: int) -> None:
        import wandb

        id_file = run_dir / "wandb_run_id.txt"
        if not id_file.exists():
            id_file.write_text(uuid.uuid4().hex)
        self._run: Any = wandb.init(
            project="mindllm",
            name=run_dir.name,
            id=id_file.read_text(),
            resume="allow",
            dir=str(run_dir),
            settings=wandb.Settings(init_timeout=_WANDB_TIMEOUT_S),
        )

    def log(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """Send the scalars; wandb itself ignores a step it has already seen."""
        self._run.log(dict(scalars), step=iteration)

    def close(self) -> None:
        """Finish the wandb run."""
        self._run.finish()


# name -> f(run_dir, first iteration that will be logged); 'jsonl' is the run log's own file.
_FACTORIES: dict[str, Callable[[Path, int], Tracker]] = {"tensorboard": TensorBoardTracker, "wandb": WandbTracker}
TRACKERS: tuple[str, ...] = ("jsonl", *_FACTORIES)


class GuardedTracker:
    """A tracker that is started by its first log, and after its first failure warns once and does nothing any more."""

    def __init__(self, name: str, run_dir: Path) -> None:
        self._name = name
        self._run_dir = run_dir
        self._tracker: Tracker | None = None
        self._failed = False

    def log(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """Start the tracker if need be, and send the scalars."""
        self._guard(lambda: self._started(iteration).log(iteration, scalars))

    def close(self) -> None:
        """Close the tracker if it was started."""
        if self._tracker is not None:
            self._guard(self._tracker.close)

    def _started(self, iteration: int) -> Tracker:
        if self._tracker is None:
            self._tracker = _FACTORIES[self._name](self._run_dir, iteration)
        return self._tracker

    def _guard(self, action: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            action()
        except Exception as error:  # whatever an optional service does, training goes on
            self._failed = True
            logger.warning(
                "tracker '%s' is off from now on, the run continues: %s: %s", self._name, type(error).__name__, error
            )

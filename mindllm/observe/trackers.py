"""Where scalars are also sent. A tracker never ends a run: it warns once and is left out from then on."""

import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

logger = logging.getLogger(__name__)

_WANDB_TIMEOUT_S = 30


@dataclass(frozen=True)
class WandbSettings:
    """What names a W&B run; what is None here is taken from wandb's environment variables, see ``WandbTracker``."""

    project: str | None = None
    name: str | None = None
    group: str | None = None
    entity: str | None = None
    save_dir: str | None = None


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker may show of a run beside its scalars."""

    directory: Path
    config: Mapping[str, Any] = field(default_factory=dict)  # resolved, JSON values
    wandb: WandbSettings = WandbSettings()


class Tracker(Protocol):
    """A receiver of the scalars of an iteration."""

    def log(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """Send the scalars."""

    def close(self) -> None:
        """Send what is buffered."""


class TensorBoardTracker:
    """Event files in ``run_dir/tensorboard``; by tensorboard's own writer, which imports far faster than torch's.

    The configuration is the text ``config``.
    """

    def __init__(self, run: TrackedRun, first_iteration: int) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
        from tensorboard.plugins.text import metadata as text_metadata
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._writer = EventFileWriter(str(run.directory / "tensorboard"))
        # TensorBoard hides what earlier files hold from this step on: each iteration is shown once after a resume.
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._writer.add_event(self._event(wall_time=time.time(), step=first_iteration, session_log=start))
        text = "    " + json.dumps(run.config, indent=2, default=str).replace("\n", "\n    ")  # Markdown's code block
        value = self._summary.Value(
            tag="config",
            metadata=text_metadata.create_summary_metadata("config", "the resolved configuration"),
            tensor=tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[text.encode()]),
        )
        summary = self._summary(value=[value])
        self._writer.add_event(self._event(wall_time=time.time(), step=first_iteration, summary=summary))

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
    """Weights & Biases, with the resolved configuration.

    A setting of the run wins over wandb's environment variable, and that over the default: project ``mindllm``, the
    run directory's name. The run id is kept in ``run_dir/wandb_run_id.txt``, so that a resumed run goes on in it.
    """

    def __init__(self, run: TrackedRun, first_iteration: int) -> None:
        import wandb

        settings, environment = run.wandb, os.environ
        directory = Path(settings.save_dir or environment.get("WANDB_DIR") or run.directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            project=settings.project or environment.get("WANDB_PROJECT") or "mindllm",
            name=settings.name or environment.get("WANDB_NAME") or run.directory.name,
            group=settings.group or environment.get("WANDB_RUN_GROUP"),
            entity=settings.entity or environment.get("WANDB_ENTITY"),
            config=dict(run.config),
            allow_val_change=True,  # a resumed run may train longer than it was first asked to
            id=_wandb_run_id(run.directory / "wandb_run_id.txt"),
            resume="allow",
            dir=str(directory),
            settings=wandb.Settings(init_timeout=_WANDB_TIMEOUT_S),
        )

    def log(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """Send the scalars; wandb itself ignores a step it has already seen."""
        self._run.log(dict(scalars), step=iteration)

    def close(self) -> None:
        """Finish the wandb run."""
        self._run.finish()


def _wandb_run_id(file: Path) -> str:
    """The id in ``file``; a new one is written there first, ``$WANDB_RUN_ID`` if it is set."""
    identity = file.read_text().strip() if file.exists() else ""
    if not identity:
        identity = os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex
        file.write_text(identity)
    return identity


# name -> f(run, first iteration that will be logged); 'jsonl' is the run log's own file.
_FACTORIES: dict[str, Callable[[TrackedRun, int], Tracker]] = {"tensorboard": TensorBoardTracker, "wandb": WandbTracker}
TRACKERS: tuple[str, ...] = ("jsonl", *_FACTORIES)


class GuardedTracker:
    """A tracker that is started by its first log, and after its first failure warns once and does nothing any more."""

    def __init__(self, name: str, run: TrackedRun) -> None:
        self._name = name
        self._run = run
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
            self._tracker = _FACTORIES[self._name](self._run, iteration)
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

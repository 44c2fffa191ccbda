"""What every stage needs around its loop: log, processes, checkpoints and resume."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar

from mindllm import __version__
from mindllm.checkpoint import (
    CheckpointInfo,
    add_chat_template,
    add_end_tokens,
    copy_hf_files,
    latest_iteration_dir,
    read_checkpoint_info,
    set_eos_token,
    write_checkpoint_info,
)
from mindllm.checkpoint.run_state import RunState, Saved, complete_iterations
from mindllm.command_line import say
from mindllm.config import RunConfig, TrainedRoleConfig, TrainingConfig, resolved_sections, resolved_yaml
from mindllm.convert import convert_mcore_to_hf
from mindllm.data import load_tokenizer, read_template_record, template_end_ids
from mindllm.errors import UserError
from mindllm.models.builder import padded_vocab_size
from mindllm.observe import RunLog, Timings, WandbSettings, outcome_of
from mindllm.stages import run_directory
from mindllm.stages.resume import check_saved, naming_the_way_back
from mindllm.stages.run_directory import DataOrigin, DataSet, Frozen, RewardFiles, find_frozen
from mindllm.workers.cluster import Cluster
from mindllm.workers.ref import Ref
from mindllm.workers.trained import TrainedModel, UpdateResult

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PHASES = {
    "weight_sync": "copying weights to the generation ranks",
    "generate": "generating responses",
    "reward": "rewarding",
    "reward_model": "scoring with the reward model",
    "old_logprobs": "computing the actor's log-probs",
    "ref": "computing the reference's log-probs",
    "values": "computing the critic's values",
    "update": "updating",
    "update_actor": "updating the actor",
    "update_critic": "updating the critic",
    "eval": "evaluating",
}
"""What the user is shown while the part of an iteration goes on whose time is ``timing/<key>``."""

_NEW_STATE = ("data", "reward_files")
"""Parts of a checkpoint's state that earlier versions did not save."""

Model = TypeVar("Model", bound=TrainedModel)
Launch = Callable[[Path, int, bool], Model]


class Stateful(Protocol):
    """Something whose state is JSON and part of every checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it up again."""


class Session:
    """One run from its first iteration, or from where an earlier process stopped, to its last."""

    def __init__(
        self,
        config: RunConfig,
        headline: dict[str, str],
        trained: dict[str, TrainedRoleConfig],
        stateful: dict[str, Stateful],
        data: DataSet,
        held_out: DataSet | None,
    ) -> None:
        """
        Args:
            config: of the run.
            headline: label -> metric of the progress line.
            trained: role -> configuration of every model that trains, and so is saved.
            stateful: name -> what the driver itself must remember: the data order, a controller.
            data: what ``data_path`` names.
            held_out: what ``training.eval_data_path`` names.
        """
        self.config, self.training = config, config.training
        self.run_dir = Path(self.training.run_dir)
        self.timings = Timings()
        origin = DataOrigin.of(config, data, held_out)
        # First, so that changed data is found before what depends on it, such as a position in its order.
        self._trained = trained
        self._stateful = {"data": origin, "reward_files": RewardFiles.of(config.reward), **stateful}
        self._models: dict[str, TrainedModel] = {}
        directories = {role: Path(settings.save) for role, settings in trained.items()}
        elsewhere = {f"{role}.save": path for role, path in directories.items() if not self._holds(path)}
        self._lock = run_directory.lock({"training.run_dir": self.run_dir, **elsewhere})
        self._state = RunState(self.run_dir, directories, self.training.keep_last_n)
        self._resumed: Saved | None = self._state.latest()
        self._frozen: dict[str, Frozen] = {}
        self._skipped_in_a_row: Counter[str] = Counter()
        self.log = RunLog(
            self.run_dir,
            self.training.trackers,
            self.training.train_iters,
            log_interval=self.training.log_interval,
            headline=headline,
            config=resolved_sections(config),
            wandb=_wandb_settings(config.training),
        )
        self.cluster = Cluster(config, self.log.phase, self.log.advance)
        self._iteration: int | None = None

    def _holds(self, directory: Path) -> bool:
        return directory.resolve().is_relative_to(self.run_dir.resolve())

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self._lock.close()
            raise
        return self

    def _begin(self) -> None:
        if not self.is_complete:
            self._frozen = self._find_frozen()
        if self._resumed is not None:
            self._take_up(self._resumed)
        self._state.clean_up()
        self.log.truncate_after(self.completed)
        run_directory.write_config(self.run_dir, resolved_yaml(self.config))
        for line in self.config.notices():
            say(line)
        self.cluster.__enter__()

    def _find_frozen(self) -> dict[str, Frozen]:
        """The checkpoints of the models that do not train; a resumed run keeps those that it began with."""
        before = self._resumed.state.get("frozen", {}) if self._resumed is not None else {}
        roles = {role: settings for role, settings in self.config.roles().items() if role in ("ref", "reward")}
        return {role: find_frozen(role, settings.load, before.get(role)) for role, settings in roles.items()}

    def _take_up(self, saved: Saved) -> None:
        """Continue from a checkpoint of the same stage, before anything is written."""
        check_saved(saved, self.training, self._trained)
        for name, owner in self._stateful.items():
            if name in saved.state or name not in _NEW_STATE:
                owner.load_state_dict(saved.state[name])
        self._skipped_in_a_row.update(saved.state["skipped_in_a_row"])
        say(f"resuming after iteration {self.completed} of {self.training.train_iters}")
        for line in run_directory.changed_keys(self.run_dir, resolved_yaml(self.config)):
            say(line)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.log.note_memory(self._memory())
            self.cluster.__exit__(kind, error, trace)
        finally:
            saved = max(complete_iterations(self.run_dir), default=0)
            self.log.close(outcome_of(kind), None if kind is None else saved)
            self._lock.close()

    @property
    def completed(self) -> int:
        """Iterations that the checkpoint this run resumes from has behind it."""
        return self._resumed.iteration if self._resumed is not None else 0

    @property
    def is_complete(self) -> bool:
        """Whether an earlier process finished this run."""
        return self.completed >= self.training.train_iters

    def source(self, role: str) -> Path:
        """Iteration directory a trained role begins with: the resumed one, or the latest of its ``load``."""
        if self._resumed is not None:
            return self._resumed.roles[role]
        return latest_iteration_dir(Path(self._trained[role].load))

    def start(self, role: str, launch: Launch[Model], total_steps: int) -> Model:
        """Start a trained role by ``launch(checkpoint, total_steps, resume)``; it will be saved.

        ``total_steps``: optimizer steps of the whole run.
        """
        if self._resumed is None:
            model = launch(self.source(role), total_steps, False)
        else:
            with naming_the_way_back(self.run_dir, self.source(role)):
                model = launch(self.source(role), total_steps, True)
        self._models[role] = model
        return model

    def hf_dir(self, role: str) -> Path:
        """The Hugging Face files, tokenizer included, of the checkpoint that a trained role begins with."""
        return read_checkpoint_info(self.source(role)).hf_dir

    def frozen(self, role: Literal["ref", "reward"]) -> Path:
        """Iteration directory of a model that does not train."""
        return self._frozen[role].directory

    def start_ref(self) -> Ref | None:
        """Start the reference model where a KL term needs one."""
        if self.config.ref is None:
            return None
        return self.cluster.start_ref(self.frozen("ref"))

    def iterations(self) -> Iterator[int]:
        """Numbers of the iterations still to do; a checkpoint is saved after each that is due, and after the last."""
        for iteration in range(self.completed + 1, self.training.train_iters + 1):
            self._iteration = iteration
            yield iteration
            self._iteration = None
            if self.is_due(self.training.save_interval, iteration):
                self._save(iteration)

    def is_due(self, interval: int | None, iteration: int) -> bool:
        """Whether something done every ``interval`` iterations, and at the end, is due now."""
        return interval is not None and (iteration % interval == 0 or iteration == self.training.train_iters)

    @contextmanager
    def measure(self, name: str, total: int | None = None) -> Iterator[None]:
        """Take the time of a part of the iteration as ``timing/<name>``, and show it if it is one of ``PHASES``.

        ``total``: how many of what it counts; see ``RunLog.phase``.
        """
        with self.timings.measure(name):
            if name not in PHASES or (name == "weight_sync" and not self.config.generates_apart):
                yield
                return
            with self.log.phase(PHASES[name], total, self._iteration):
                yield

    def measurements(self) -> dict[str, float]:
        """``timing/*`` of the iteration, and ``memory/*_peak_gib`` of all calls of ranks since this was last asked."""
        return self.timings.take() | self._memory()

    def _memory(self) -> dict[str, float]:
        return {f"memory/{name}_peak_gib": size / 2**30 for name, size in self.cluster.take_peaks().items()}

    def record_step(self, role: str, result: UpdateResult) -> None:
        """Keep count of a role's skipped optimizer steps.

        Raises:
            UserError: too many in a row had a gradient that was not finite.
        """
        self._skipped_in_a_row[role] = self._skipped_in_a_row[role] + 1 if result.skipped else 0
        skipped = self._skipped_in_a_row[role]
        if skipped >= self.training.max_skipped_steps:
            raise UserError(
                f"training.max_skipped_steps: {skipped} optimizer steps of the {role} in a row had a gradient norm of "
                f"{result.grad_norm} and were skipped; lower its lr or look at the samples in {self.run_dir}"
            )

    def _save(self, iteration: int) -> None:
        state: dict[str, Any] = {name: owner.state_dict() for name, owner in self._stateful.items()}
        state["skipped_in_a_row"] = dict(self._skipped_in_a_row)
        state["stage"] = self.training.stage
        state["frozen"] = {role: found.as_state() for role, found in self._frozen.items()}
        writers = {role: partial(self._write_role, role, iteration) for role in self._models}
        with self.log.phase("saving a checkpoint", iteration=iteration):
            self._state.save(iteration, state, writers)

    def _write_role(self, role: str, iteration: int, directory: Path) -> None:
        """Fill a role's directory: training state, and what makes it a checkpoint of its own."""
        self._models[role].save(directory)
        settings = self._trained[role]
        info = read_checkpoint_info(latest_iteration_dir(Path(settings.load)))
        dtype = "bfloat16" if settings.bf16 else "float32"
        copy_hf_files(info.hf_dir, directory / "hf", dtype)
        if role == "actor":
            self._describe_conversations(directory / "hf", info)
        write_checkpoint_info(
            directory,
            info.architecture,
            head=info.head,
            padded_vocab_size=padded_vocab_size(
                info.vocab_size, settings.make_vocab_size_divisible_by, settings.tensor_model_parallel_size
            ),
            dtype=dtype,
            ignored_config_fields=info.ignored_config_fields,
            provenance={
                "source": str(settings.load),
                "stage": self.training.stage,
                "iteration": iteration,
                "mindllm": __version__,
            },
        )

    def _describe_conversations(self, hf_dir: Path, info: CheckpointInfo) -> None:
        """Let the actor's files say how it is prompted and where its answers end, for engines that serve it."""
        record = read_template_record(self.config.actor.data_path)
        if record is not None:
            add_chat_template(hf_dir, record.chat_template)
        if info.head == "lm" and self._end_ids:
            add_end_tokens(hf_dir, self._end_ids)
            set_eos_token(hf_dir, self._tokenizer.convert_ids_to_tokens(self._end_ids))

    @cached_property
    def _end_ids(self) -> list[int]:
        """The tokens that the actor is trained to end answers with; [] where its data does not say."""
        actor = self.config.actor
        return actor.eos_token_ids or template_end_ids(self._tokenizer, [actor.data_path])

    @cached_property
    def _tokenizer(self) -> "PreTrainedTokenizerBase":
        return load_tokenizer(self.config.actor.tokenizer_name_or_path or self.hf_dir("actor"))

    def export(self) -> None:
        """Write the final actor as a Hugging Face model where ``training.export_hf`` asks for it.

        A finished run that is started again exports nothing over what is there; preflight refuses it for any other.
        """
        if self.training.export_hf is None:
            return
        if Path(self.training.export_hf).exists():
            say(f"training.export_hf: {self.training.export_hf} is there already, nothing is exported")
            return
        with self.log.phase(f"exporting to {self.training.export_hf}"):
            convert_mcore_to_hf(
                Path(self.config.actor.save), Path(self.training.export_hf), iteration=self.training.train_iters
            )


def _wandb_settings(training: TrainingConfig) -> WandbSettings:
    return WandbSettings(
        training.wandb_project,
        training.wandb_exp_name,
        training.wandb_group,
        training.wandb_entity,
        training.wandb_save_dir,
    )


def mean_metrics(results: list[UpdateResult], prefix: str) -> dict[str, float]:
    """Means over optimizer steps, under ``prefix``; names that end in ``_max`` keep the largest."""
    metrics = {}
    for name in results[0].metrics:
        values = [result.metrics[name] for result in results]
        metrics[f"{prefix}/{name}"] = max(values) if name.endswith("_max") else sum(values) / len(values)
    if "pg_loss" in results[0].metrics:
        # The mean of a policy loss on whitened advantages is near 0 whatever happens; its size is not.
        metrics[f"{prefix}/pg_loss_abs"] = sum(abs(result.metrics["pg_loss"]) for result in results) / len(results)
    norms = [result.grad_norm for result in results]
    metrics[f"{prefix}/grad_norm"] = sum(norms) / len(norms)
    metrics[f"{prefix}/lr"] = results[-1].lr
    metrics[f"{prefix}/skipped_steps"] = float(sum(result.skipped for result in results))
    return metrics

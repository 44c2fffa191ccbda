"""Whether a run can go on from its newest checkpoint, which is found out before anything is started or written."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mindllm.checkpoint import latest_iteration_dir, read_checkpoint_info
from mindllm.checkpoint.run_state import RunState, Saved
from mindllm.config import RunConfig, TrainedRoleConfig, TrainingConfig
from mindllm.data import InstructionDataset, PairwiseDataset, PromptDataset, ResumableSampler
from mindllm.errors import UserError
from mindllm.formats.torch_dist import TorchDistReader
from mindllm.stages.run_directory import DataOrigin, RewardFiles

_DATA_SETS = {"sft": InstructionDataset, "orm": PairwiseDataset}


def check_resume(config: RunConfig) -> list[str]:
    """Check the checkpoint and the data of a run that was started before; reads no tensors and writes nothing.

    Returns:
        One line if there is such a run, else none.

    Raises:
        UserError: the run cannot go on.
    """
    training = config.training
    trained: dict[str, TrainedRoleConfig] = {"actor": config.actor}
    if config.critic is not None:
        trained["critic"] = config.critic
    directories = {role: Path(settings.save) for role, settings in trained.items()}
    saved = RunState(Path(training.run_dir), directories, training.keep_last_n).latest()
    if saved is None:
        return []
    check_saved(saved, training, trained)
    open_data = _DATA_SETS.get(training.stage, PromptDataset)
    data = open_data(config.actor.data_path)
    held_out = open_data(training.eval_data_path) if training.eval_data_path else None
    DataOrigin.of(config, data, held_out).load_state_dict(saved.state.get("data", {}))
    make_sampler(len(data), training).load_state_dict(saved.state["sampler"])
    RewardFiles.of(config.reward).load_state_dict(saved.state.get("reward_files", {}))
    return [f"resume: after iteration {saved.iteration} of {training.train_iters}"]


def check_saved(saved: Saved, training: TrainingConfig, trained: Mapping[str, TrainedRoleConfig]) -> None:
    """Check that a checkpoint is of the same stage and architectures as the run now, and that its files are whole.

    Raises:
        UserError: it is not.
    """
    run_dir, stage = Path(training.run_dir), saved.state["stage"]
    if stage != training.stage:
        raise UserError(
            f"training.run_dir: {run_dir} holds a run of stage {stage}, not {training.stage}; write another run_dir"
        )
    for directory in saved.roles.values():
        with naming_the_way_back(run_dir, directory), TorchDistReader(directory) as reader:
            reader.check_loadable()
            read_checkpoint_info(directory)
    for role, settings in trained.items():
        started = read_checkpoint_info(latest_iteration_dir(Path(settings.load))).architecture
        if read_checkpoint_info(saved.roles[role]).architecture != started:
            raise UserError(
                f"{role}.load: {settings.load} is another architecture than the run in {run_dir} has; name the model "
                "that it began with, or write another run_dir"
            )


def make_sampler(size: int, training: TrainingConfig) -> ResumableSampler:
    """The order in which a run reads a data set of ``size`` samples."""
    return ResumableSampler(
        size, training.global_batch_size, training.seed, not training.no_shuffle, training.allow_changed_data
    )


@contextmanager
def naming_the_way_back(run_dir: Path, directory: Path) -> Iterator[None]:
    """Add to what is wrong with a role's ``directory`` of a run how to do without that checkpoint."""
    try:
        yield
    except UserError as error:
        if str(directory) not in str(error):
            raise
        manifest = run_dir / "checkpoints" / f"{directory.name}.json"
        raise UserError(f"{error}; delete {manifest} to go back to the checkpoint before it") from None

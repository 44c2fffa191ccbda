"""Which suffix means which type."""

from pathlib import Path

from mindllm.errors import UserError
from mindllm.preprocess.inputs.base import Format
from mindllm.preprocess.inputs.json_lines import JsonLines, TextLines
from mindllm.preprocess.inputs.json_values import JsonValues
from mindllm.preprocess.inputs.tables import Arrow, Csv, Parquet, SavedDataset

_STREAMS: dict[str, Format] = {".json": JsonValues(), ".jsonl": JsonLines(), ".csv": Csv(), ".txt": TextLines()}
FORMATS: dict[str, Format] = {
    **_STREAMS,
    **{suffix + packed: kind for suffix, kind in _STREAMS.items() for packed in (".gz", ".zst")},
    ".parquet": Parquet(),
    ".arrow": Arrow(),
}
_SAVED_DATASET = SavedDataset()


def is_known(path: Path) -> bool:
    """Whether files with this name are read."""
    return _suffix(path) in FORMATS


def is_saved_dataset(path: Path) -> bool:
    """Whether a directory was written by `datasets`."""
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def format_of(path: Path) -> Format:
    """The type of an input.

    Raises:
        UserError: no type has this suffix.
    """
    if path.is_dir() and is_saved_dataset(path):
        return _SAVED_DATASET
    if not is_known(path):
        raise UserError(f"{path}: files of type '{_suffix(path)}' are not read; allowed are {', '.join(FORMATS)}")
    return FORMATS[_suffix(path)]


def _suffix(path: Path) -> str:
    return "".join(path.suffixes[-2:]) if path.suffix in (".gz", ".zst") else path.suffix

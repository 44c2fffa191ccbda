"""Input file types, by suffix."""

from mindllm.preprocess.inputs.base import Format, Mark, Scan
from mindllm.preprocess.inputs.registry import FORMATS, format_of, is_known, is_saved_dataset

__all__ = ["FORMATS", "Format", "Mark", "Scan", "format_of", "is_known", "is_saved_dataset"]

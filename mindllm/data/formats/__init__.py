"""Input file types, by suffix."""

from mindllm.data.formats.base import Format, Mark, Scan
from mindllm.data.formats.registry import FORMATS, format_of, is_known, is_saved_dataset

__all__ = ["FORMATS", "Format", "Mark", "Scan", "format_of", "is_known", "is_saved_dataset"]

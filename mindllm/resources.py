"""Files that the package ships beside its modules."""

from importlib.resources import files
from pathlib import Path

# In a checkout `mindllm/configs` is a link to `configs`; a wheel has the files themselves.
_CONFIGS = Path(str(files("mindllm"))) / "configs"
TRAINER_CONFIGS = _CONFIGS / "rlxf"
TEMPLATES = _CONFIGS / "templates"

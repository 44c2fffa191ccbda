"""Names of configuration files, and where they are."""

from pathlib import Path

from mindllm.errors import UserError, near_names
from mindllm.resources import TRAINER_CONFIGS


def config_names(directory: Path) -> list[str]:
    """Return the names (without ``.yaml``) of the files in ``directory``, sorted; none if it does not exist."""
    return sorted(path.stem for path in directory.glob("*.yaml"))


def alternatives(name: str, available: list[str]) -> str:
    """Return ``"did you mean ..."`` or, when nothing is close, ``"available: ..."``."""
    close = near_names(name, available)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"available: {', '.join(available) or 'none'}"


def find_config(config_name: str, config_dir: str | None = None) -> Path:
    """Return the absolute path of a configuration's file.

    Args:
        config_name: a name, with or without ``.yaml``, of a file in ``config_dir``; or a path, with or without
            ``.yaml``, that starts there or in the working directory.
        config_dir: directory of configurations; the shipped ``configs/rlxf`` by default.

    Raises:
        UserError: there is no such file, or it is not named as YAML files are.
    """
    directory = TRAINER_CONFIGS if config_dir is None else Path(config_dir)
    if not directory.is_dir():
        raise UserError(f"--config-dir {config_dir}: no such directory")
    is_path = len(Path(config_name).parts) > 1 or Path(config_name).suffix in (".yaml", ".yml")
    here = Path()
    if config_dir is None:
        places = [here, directory] if is_path else [directory, here]
    else:
        places = [directory, here] if is_path else [directory]
    for place in places:
        file = place / (config_name if config_name.endswith(".yaml") else f"{config_name}.yaml")
        if file.is_file():
            return file.absolute()
    raise UserError(_not_found(config_name, directory, is_path))


def _not_found(config_name: str, directory: Path, is_path: bool) -> str:
    file, where = Path(config_name), f"--config-name {config_name}"
    if file.is_dir() and config_name:
        return f"{where} is a directory; name a file in it: {', '.join(config_names(file)) or 'it has no .yaml files'}"
    if file.is_file():
        return f"{where}: the name of a configuration file ends in .yaml; rename it"
    if not is_path:
        return f"config '{config_name}' is not in {directory}; {alternatives(config_name, config_names(directory))}"
    available = config_names(file.parent) or config_names(directory / file.parent) or config_names(directory)
    return (
        f"{where}: no such file{'' if file.suffix else ', with or without .yaml'}; {alternatives(file.stem, available)}"
    )

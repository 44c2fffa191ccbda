"""Compose a configuration's files with hydra, put the command line on top, and hand over to the schema.

Hydra is imported where it is used: workers receive the schema's classes and have nothing to compose.
"""

import warnings
from pathlib import Path
from typing import Any

import yaml

from mindllm.config.build import build_config
from mindllm.config.catalog import config_names, near_names
from mindllm.config.overrides import apply_overrides, is_file_choice
from mindllm.config.schema import RunConfig
from mindllm.errors import UserError
from mindllm.resources import TRAINER_CONFIGS


def compose_config(config_name: str, overrides: list[str], config_dir: str | None = None) -> RunConfig:
    """Return the checked configuration ``config_name`` with ``overrides`` on top.

    Args:
        config_name: a file of the directory without ``.yaml``, or the path of a YAML file.
        overrides: ``key=value`` in order; a later one wins over an earlier one and over the files.
        config_dir: directory of the configuration; the shipped ``configs/rlxf`` by default. Model files are also
            looked up there.

    Raises:
        UserError: a file or key is unknown, missing or wrong; one sentence a line.
    """
    directory, name = _locate(config_name, config_dir)
    raw = _composed(directory, name, [item for item in overrides if is_file_choice(item)])
    apply_overrides(raw, [item for item in overrides if not is_file_choice(item)])
    return build_config(_resolved(raw), name)


def _locate(config_name: str, config_dir: str | None) -> tuple[Path, str]:
    file = Path(config_name)
    if file.suffix in (".yaml", ".yml") and file.is_file() and config_dir is None:
        return file.parent.resolve(), file.stem
    directory = Path(config_dir).resolve() if config_dir is not None else TRAINER_CONFIGS
    if not directory.is_dir():
        raise UserError(f"--config-dir {config_dir}: no such directory")
    name = config_name.removesuffix(".yaml")
    if not (directory / f"{name}.yaml").is_file():
        if config_dir is None and file.suffix in (".yaml", ".yml"):
            raise UserError(f"--config-name {config_name}: no such file")
        available = config_names(directory)
        raise UserError(f"config '{name}' is not in {directory}; {near_names(name, available)}")
    return directory, name


def _composed(directory: Path, name: str, choices: list[str]) -> dict[str, Any]:
    """Run hydra over the defaults list; interpolations stay as written."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import ConfigCompositionException, HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    shipped = f"hydra.searchpath=['file://{TRAINER_CONFIGS}']"
    GlobalHydra.instance().clear()
    try:
        with warnings.catch_warnings(), initialize_config_dir(str(directory), version_base="1.3"):
            # Files of this style have no `_self_` in their defaults list, and need none.
            warnings.filterwarnings("ignore", message=".*_self_")
            composed = compose(name, overrides=[shipped, *choices])
        raw = OmegaConf.to_container(composed, resolve=False)
    except yaml.YAMLError as error:
        raise UserError(f"{directory / name}.yaml or a file it names is not YAML: {_one_line(error)}") from error
    except ConfigCompositionException as error:
        raise UserError(f"config '{name}': {_composition_sentence(error, directory)}") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"config '{name}': {_one_line(error)}") from error
    if not isinstance(raw, dict):
        raise UserError(f"config '{name}' is empty or not a mapping of sections")
    return {str(key): value for key, value in raw.items()}


def _resolved(raw: dict[str, Any]) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        resolved = OmegaConf.to_container(OmegaConf.create(raw), resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise UserError(f"{error.full_key or 'config'}: {_one_line(error)}") from error
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def _composition_sentence(error: Exception, directory: Path) -> str:
    missing = getattr(error, "missing_cfg_file", None)
    if missing is None:
        return _one_line(error)
    group, _, leaf = str(missing).rpartition("/")
    available = sorted(set(config_names(directory / group)) | set(config_names(TRAINER_CONFIGS / group)))
    near = near_names(leaf, available)
    return f"its defaults list names {group or 'config'} file '{leaf}', which does not exist; {near}"


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:4])

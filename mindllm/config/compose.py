"""Compose a configuration's files with hydra, put the command line on top, and hand over to the schema.

Hydra is imported where it is used: workers receive the schema's classes and have nothing to compose.
"""

import warnings
from pathlib import Path
from typing import Any

import yaml

from mindllm.config.build import build_config
from mindllm.config.catalog import alternatives, config_names, find_config
from mindllm.config.overrides import apply_overrides, is_file_choice
from mindllm.config.schema import RunConfig
from mindllm.errors import UserError, not_yaml
from mindllm.resources import TRAINER_CONFIGS


def compose_config(config_name: str, overrides: list[str], config_dir: str | None = None) -> RunConfig:
    """Return the checked configuration ``config_name`` with ``overrides`` on top.

    Args:
        config_name: see ``find_config``.
        overrides: ``key=value`` in order; a later one wins over an earlier one and over the files.
        config_dir: directory of configurations; the shipped ``configs/rlxf`` by default. Model files are also
            looked up there.

    Raises:
        UserError: a file or key is unknown, missing or wrong; one sentence a line.
    """
    file = find_config(config_name, config_dir)
    above = [TRAINER_CONFIGS] if config_dir is None else [Path(config_dir), TRAINER_CONFIGS]
    raw = _composed(file, above, [item for item in overrides if is_file_choice(item)])
    apply_overrides(raw, [item for item in overrides if not is_file_choice(item)])
    return build_config(_resolved(raw), file.stem)


def _composed(file: Path, above: list[Path], choices: list[str]) -> dict[str, Any]:
    """Run hydra over the defaults list; interpolations stay as written.

    Model files are looked up beside ``file``, then in the directories ``above``.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import ConfigCompositionException, HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    directory, name = file.parent, file.stem
    search = ",".join(f"'file://{path.absolute()}'" for path in above if path.absolute() != directory)
    GlobalHydra.instance().clear()
    try:
        with warnings.catch_warnings(), initialize_config_dir(str(directory), version_base="1.3"):
            # Files of this style have no `_self_` in their defaults list, and need none.
            warnings.filterwarnings("ignore", message=".*_self_")
            composed = compose(name, overrides=[f"hydra.searchpath=[{search}]", *choices])
        raw = OmegaConf.to_container(composed, resolve=False)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(not_yaml(file, error)) from error
    except ConfigCompositionException as error:
        if "must be a DictConfig" in str(error):
            raise UserError(f"{file} is a list, not a mapping of sections") from error
        raise UserError(f"config '{name}': {_composition_sentence(error, [directory, *above])}") from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:  # ValueError: of what `defaults` is
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


def _composition_sentence(error: Exception, directories: list[Path]) -> str:
    missing = getattr(error, "missing_cfg_file", None)
    if missing is None:
        return _one_line(error)
    group, _, leaf = str(missing).rpartition("/")
    available = sorted({name for directory in directories for name in config_names(directory / group)})
    near = alternatives(leaf, available)
    return f"its defaults list names {group or 'config'} file '{leaf}', which does not exist; {near}"


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # OmegaConf adds which key it was, which is said already, and of which of its classes.
    told = [line for line in lines if not line.startswith(("full_key:", "object_type="))]
    return " ".join(told[:4])

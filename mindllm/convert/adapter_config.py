"""``adapter_config.json`` of PEFT: which adapters are sums that can be merged into a model. No torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindllm.errors import UserError

# Fields that do not change how the file's tensors are merged, or that the merge reads. PEFT sets fan_in_fan_out to
# false for linear layers by itself.
_ACCEPTED = frozenset(
    "alpha_pattern auto_mapping base_model_name_or_path bias corda_config ensure_weight_tying eva_config "
    "exclude_modules fan_in_fan_out inference_mode init_lora_weights layers_pattern layers_to_transform loftq_config "
    "lora_alpha lora_bias lora_dropout lora_ga_config megatron_core merge_weights modules_to_save peft_type "
    "peft_version qalora_group_size r rank_pattern revision runtime_config target_modules task_type use_dora "
    "use_rslora".split()
)
_MERGE_ELSEWHERE = "merge it with peft (merge_and_unload) and convert the result"
_REFUSED: Mapping[str, str] = {
    "alora_invocation_tokens": "it acts only after its invocation tokens, as no merged weight can; peft refuses it too",
    "arrow_config": "it chooses adapters per token, as no merged weight can; peft refuses it too",
    "layer_replication": "its layers are other ones than the model's; peft refuses it too",
    "target_parameters": f"it adapts parameters that are no layers; {_MERGE_ELSEWHERE}",
    "trainable_token_indices": f"it replaces rows of the embedding; {_MERGE_ELSEWHERE}",
    "use_bdlora": f"its matrices are block-diagonal; {_MERGE_ELSEWHERE}",
    "use_qalora": f"it pools the inputs of quantized layers; {_MERGE_ELSEWHERE}",
}
# Initializations that leave the model as it is; the others move part of it into the adapter.
_INITIALIZATIONS = (None, True, False, "gaussian", "eva", "orthogonal", "mica")


def read_adapter_config(path: Path) -> dict[str, Any]:
    """Return the fields of an adapter that can be merged. Raises UserError naming the field and why it cannot be."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path.parent} has no {path.name}; a PEFT adapter directory is needed") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else None
        raise UserError(f"{path}: peft_type is {kind!r}; only 'LORA' can be merged here, else {_MERGE_ELSEWHERE}")
    _check_initialization(config, path)
    for name, value in config.items():
        if name in _ACCEPTED or not value:
            continue
        reason = _REFUSED.get(name, f"the field is not known here; {_MERGE_ELSEWHERE}")
        raise UserError(f"{path}: {name} is {value!r}: {reason}")
    return config


def _check_initialization(config: Mapping[str, Any], path: Path) -> None:
    """Refuse adapters whose base is not the model that they started from."""
    kind = config.get("init_lora_weights")
    name = kind.lower() if isinstance(kind, str) else kind
    if name in _INITIALIZATIONS:
        return
    remedy = "save it with path_initial_model_for_weight_conversion, which makes it a plain adapter, or "
    if name == "loftq":
        remedy = ""
    raise UserError(
        f"{path}: init_lora_weights is {kind!r}: this initialization also changed the weights that the adapter is "
        f"added to, so that they are not the model's; {remedy}{_MERGE_ELSEWHERE}"
    )

# shellcheck shell=bash
# Sourced by the scripts of this repository, which have changed to its root. Both functions set PYTHON;
# MINDLLM_PYTHON=/path/to/python makes both use that interpreter.

# find_python: an interpreter that has what mindllm needs, for launch scripts; installs nothing.
find_python() {
    local candidates=("$PWD/.venv/bin/python" python python3) candidate
    local check='from importlib.util import find_spec as f; assert all(map(f, ("torch", "megatron.core", "transformers", "ray")))'
    # An activated environment is what the user asked for; after it, the one that the quickstart makes.
    [ -z "${CONDA_PREFIX:-}" ] || candidates=("$CONDA_PREFIX/bin/python" "${candidates[@]}")
    [ -z "${VIRTUAL_ENV:-}" ] || candidates=("$VIRTUAL_ENV/bin/python" "${candidates[@]}")
    [ -z "${MINDLLM_PYTHON:-}" ] || candidates=("$MINDLLM_PYTHON")
    for candidate in "${candidates[@]}"; do
        if "$candidate" -c "$check" >/dev/null 2>&1; then
            PYTHON="$candidate"
            return
        fi
    done
    echo "error: none of ${candidates[*]} has torch, megatron-core, transformers and ray; install them with" \
        "'python -m pip install -c constraints.txt -e .' or set MINDLLM_PYTHON=/path/to/python" >&2
    exit 2
}

# use_environment EXTRAS: .venv with the versions of constraints.txt, made if it is missing or out of date.
use_environment() {
    local extras="$1" base stamp
    # One thread per process: ranks share the cores, and two threads under load are several times slower than one.
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0
    if [ -n "${MINDLLM_PYTHON:-}" ]; then
        PYTHON="$MINDLLM_PYTHON"
        return
    fi
    base="$(command -v python3.11 || command -v python3)"
    PYTHON="$PWD/.venv/bin/python"
    [ -x "$PYTHON" ] || "$base" -m venv .venv
    # The stamp names what was installed from which pins, so a second run starts at once and an update reinstalls.
    stamp=".venv/installed-$(cat pyproject.toml constraints.txt <(echo "$extras") | sha256sum | cut -c1-16)"
    if [ ! -e "$stamp" ]; then
        echo "installing into .venv (once; minutes on a slow network)"
        # torch first: its own pin decides between the CPU and the CUDA build before anything asks for it.
        "$PYTHON" -m pip install --quiet -c constraints.txt torch==2.13.0 setuptools
        "$PYTHON" -m pip install --quiet -c constraints.txt --no-build-isolation -e ".${extras:+[$extras]}"
        touch "$stamp"
    fi
}

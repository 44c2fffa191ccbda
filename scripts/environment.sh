# Sourced by the run scripts: `use_environment EXTRAS` makes .venv with the versions of constraints.txt and sets PYTHON.
# MINDLLM_PYTHON=/path/to/python uses that interpreter as it is and installs nothing.

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
    stamp=".venv/installed-$(cat setup.py constraints.txt <(echo "$extras") | sha256sum | cut -c1-16)"
    if [ ! -e "$stamp" ]; then
        echo "installing into .venv (once; minutes on a slow network)"
        # torch first: its own pin decides between the CPU and the CUDA build before anything asks for it.
        "$PYTHON" -m pip install --quiet -c constraints.txt torch==2.13.0 setuptools
        "$PYTHON" -m pip install --quiet -c constraints.txt --no-build-isolation -e ".${extras:+[$extras]}"
        touch "$stamp"
    fi
}

# shellcheck shell=bash
# Shared by setup_vllm.sh and setup_sglang.sh; not meant to be run by itself.

# Two of these are used only by the scripts that read this file.
# shellcheck disable=SC2034
{
    LABS_DIR="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
    LAB_ROOT="${HARNESS_LAB_DIR:-$(dirname "$LABS_DIR")/.labs}"
    MODELS_DIR="${HARNESS_MODELS_DIR:-$HOME/.cache/harness/models}"
    PYTHON="${PYTHON:-python3.11}"
    TORCH_VERSION=2.13.0
}

say() { printf '%s\n' "$*"; }

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# make_venv DIR: a fresh virtual environment; whatever was there is replaced.
make_venv() {
    command -v "$PYTHON" >/dev/null 2>&1 ||
        die "$PYTHON not found: install Python 3.11, or set PYTHON to the program to use"
    say "creating $1 with $("$PYTHON" --version)"
    "$PYTHON" -m venv --clear "$1"
}

# pip_install VENV ARGS...: install quietly, with one line that says what.
pip_install() {
    local venv=$1
    shift
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

# site_packages VENV: where the environment keeps its packages.
site_packages() {
    "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

# fingerprint TEXT FILE...: changes whenever the text or one of the files does.
fingerprint() {
    { printf '%s\n' "$1" && cat -- "${@:2}"; } | sha256sum | cut -d' ' -f1
}

# is_built VENV FINGERPRINT: true when this very recipe finished here before.
is_built() {
    [ -x "$1/bin/python" ] && [ "$(cat "$1/.harness-lab" 2>/dev/null)" = "$2" ]
}

mark_built() {
    printf '%s\n' "$2" >"$1/.harness-lab"
}

# show_versions VENV NAME...: "name version" for each installed distribution.
show_versions() {
    local venv=$1
    shift
    "$venv/bin/python" - "$@" <<'PYTHON_END'
import importlib.metadata
import sys

for name in sys.argv[1:]:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        version = "not installed"
    print(f"  {name} {version}")
PYTHON_END
}

# convert_model VENV: make the small test model unless it is there.
convert_model() {
    local venv=$1
    local gguf="$MODELS_DIR/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf"
    local out="$MODELS_DIR/smollm2-135m-hf"
    if [ -f "$out/gguf_origin.json" ]; then
        say "model: $out"
    elif [ -f "$gguf" ]; then
        say "converting the test model (about 30 s)"
        OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" \
            "$venv/bin/python" "$LABS_DIR/gguf_to_safetensors.py" --gguf "$gguf" --out "$out"
    else
        say "model: not here. Run 'harness models pull smollm2-135m' first, then this script again."
    fi
}

# cpu_has FLAG: true when the processor names this feature.
cpu_has() {
    grep -qw "$1" /proc/cpuinfo 2>/dev/null
}

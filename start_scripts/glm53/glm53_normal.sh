#!/usr/bin/env bash
# One LightLLM server for GLM-5.3 Flash, as scenarios/glm53-fp8kv.yaml starts it.
set -euo pipefail
# shellcheck source=start_scripts/glm53/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

usage() {
    cat <<'TEXT'
Start one LightLLM server for GLM-5.3 Flash, in the foreground.

    MODEL_DIR=/models/GLM-5.3-Flash KV_TYPE=fp8kv_dsa MTP=1 glm53_normal.sh

Settings, all from the environment:
    MODEL_DIR             directory of the model (must be set)
    KV_TYPE, LLM_KV_TYPE  None (BF16 KV cache, the default) or fp8kv_dsa; two names for one setting
    MTP                   1: speculative decoding with two steps (default 0)
    PREFILL_GRAPH         1: CUDA graphs for prefill (default: as MTP, but 0 with SMALL_POOL)
    SMALL_POOL            1: a pool of 4096 tokens, in which requests have to pause (default 0)
    CPU_CACHE             1: a CPU cache of 16 GB behind the GPU's; needs SMALL_POOL=1 (default 0)
    TP                    GPUs of the server (default 4); CUDA_VISIBLE_DEVICES says which
    PORT, NCCL_PORT       default 18000 and 18100; take new ones for every start
    LOG_DIR               directory for server.log; unset: the log goes to the terminal
    PYTHON                interpreter that has LightLLM (default python)
    DRY_RUN               1: print the command, one word a line, and start nothing
TEXT
}

if (($#)); then
    case $1 in
        -h | --help) usage && exit 0 ;;
        *) complain "takes no arguments; settings come from the environment (-h lists them)" ;;
    esac
fi

read_settings
PORT=${PORT-18000}
NCCL_PORT=${NCCL_PORT-18100}
whole PORT 1 65535
whole NCCL_PORT 1 65535
((PORT != NCCL_PORT)) || complain "PORT and NCCL_PORT are both $PORT"
if [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then
    gpu_list CUDA_VISIBLE_DEVICES
fi
pool_flags
mtp_flags
if yes_no MTP && ! yes_no SMALL_POOL; then
    PREFILL_GRAPH=${PREFILL_GRAPH-1}
fi
command=("${LAUNCH[@]}" --host 127.0.0.1 --port "$PORT" --nccl_port "$NCCL_PORT")
command+=("${POOL[@]}" "${GRAPHS[@]}" "${LINEAR[@]}" ${MTP_FLAGS[@]+"${MTP_FLAGS[@]}"})
if yes_no PREFILL_GRAPH; then
    command+=(--enable_prefill_cudagraph --prefill_cudagraph_max_handle_token 1024)
fi
if yes_no CPU_CACHE; then
    yes_no SMALL_POOL || complain "CPU_CACHE=1 needs SMALL_POOL=1, which sets the pages of the CPU cache"
    command+=(--enable_cpu_cache --cpu_cache_storage_size 16 --cache_placement_strategy legacy)
fi

if yes_no DRY_RUN; then
    printf '%s\n' "${command[@]}"
    exit 0
fi
export_environment
if [[ -n ${LOG_DIR:-} ]]; then
    mkdir -p -- "$LOG_DIR"
    exec > "$LOG_DIR/server.log" 2>&1
fi
exec "${command[@]}"

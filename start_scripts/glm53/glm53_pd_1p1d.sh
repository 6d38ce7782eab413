#!/usr/bin/env bash
# GLM-5.3 Flash with prefill and decode on GPUs of their own: a prefill node, a decode node and a master.
set -euo pipefail
# shellcheck source=start_scripts/glm53/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

usage() {
    cat <<'TEXT'
Start a prefill node, a decode node and their master on this machine, each with its own log, and wait.
Ends when one of them ends, or on Ctrl-C or SIGTERM; stops what it started, and nothing else.

    MODEL_DIR=/models/GLM-5.3-Flash LLM_KV_TYPE=fp8kv_dsa glm53_pd_1p1d.sh 18000 10.0.0.5
    glm53_pd_1p1d.sh [MASTER_PORT [NODE_IP [MODEL_DIR]]]

Clients talk to the master, with text prompts: http://127.0.0.1:MASTER_PORT. Wait until its /readiness
answers 200. Arguments on which the three have to agree are the same for all of them here.

Settings, all from the environment:
    MODEL_DIR             directory of the model (must be set)
    MASTER_PORT           the master's port (default 18000); the nodes take the next two, and +101 and +102
    NODE_IP               address of this machine's network card (default: the first of `hostname -i`)
    LLM_KV_TYPE, KV_TYPE  None (BF16 KV cache, the default) or fp8kv_dsa; two names for one setting
    MTP                   1: speculative decoding with two steps, on both nodes (default 0)
    PD_KV_PAGE_SIZE       tokens of a transfer page; has to hold a request's whole state
                          (default 32768 for fp8kv_dsa, else 16384)
    TP                    GPUs of each node (default 4)
    PREFILL_GPUS, DECODE_GPUS   default 0,1,2,3 and 4,5,6,7
    LOG_DIR               directory for prefill.log, decode.log and master.log (default ./glm53_pd_logs)
    PYTHON                interpreter that has LightLLM (default python)
    DRY_RUN               1: print the three commands, one word a line, and start nothing
TEXT
}

case ${1:-} in
    -h | --help) usage && exit 0 ;;
    -*) complain "there is no option $1 (-h lists the settings)" ;;
esac
(($# <= 3)) || complain "takes at most MASTER_PORT, NODE_IP and MODEL_DIR"
MASTER_PORT=${1:-${MASTER_PORT-18000}}
NODE_IP=${2:-${NODE_IP:-}}
MODEL_DIR=${3:-${MODEL_DIR:-}}
whole MASTER_PORT 1 $((65535 - 102)) # the nodes' ports lie behind it
if [[ -z $NODE_IP ]]; then
    read -r NODE_IP _ <<< "$(hostname -i)"
fi
case $NODE_IP in
    127.* | localhost | ::1) complain "a node ends itself on $NODE_IP; set NODE_IP to a network card's address" ;;
esac
! yes_no SMALL_POOL || complain "SMALL_POOL is for glm53_normal.sh; prefill and decode nodes never pause"
! yes_no CPU_CACHE || complain "CPU_CACHE is for glm53_normal.sh; a decode node refuses it"

read_settings
PREFILL_GPUS=${PREFILL_GPUS-0,1,2,3}
DECODE_GPUS=${DECODE_GPUS-4,5,6,7}
gpu_list PREFILL_GPUS
gpu_list DECODE_GPUS
for gpu in ${PREFILL_GPUS//,/ }; do
    [[ ,$DECODE_GPUS, != *",$gpu,"* ]] || complain "GPU $gpu is in PREFILL_GPUS and in DECODE_GPUS"
done
STOP_SECONDS=${STOP_SECONDS-75}
whole STOP_SECONDS 0 3600
pool_flags
mtp_flags
page=16384
if [[ $KV_TYPE == fp8kv_dsa ]]; then
    page=32768 # an FP8 page of 16384 tokens cannot hold the whole state of one request
fi
PD_KV_PAGE_SIZE=${PD_KV_PAGE_SIZE-$page}
whole PD_KV_PAGE_SIZE 1 10000000
if ((PD_KV_PAGE_SIZE % 16 != 0)); then
    complain "PD_KV_PAGE_SIZE is a multiple of --page_size 16, not $PD_KV_PAGE_SIZE"
elif [[ $KV_TYPE == fp8kv_dsa ]] && ((PD_KV_PAGE_SIZE < page)); then
    complain "PD_KV_PAGE_SIZE is at least $page with fp8kv_dsa, not $PD_KV_PAGE_SIZE"
fi

# node ROLE OFFSET: the words that a node's command begins with.
node() {
    NODE=("${LAUNCH[@]}" --host "$NODE_IP")
    NODE+=(--port "$((MASTER_PORT + $2))" --nccl_port "$((MASTER_PORT + 100 + $2))" --run_mode "$1")
    NODE+=(--pd_master_ip 127.0.0.1 --pd_master_port "$MASTER_PORT")
}

shared=("${POOL[@]}" "${LINEAR[@]}" --linear_att_ssm_data_type float32 ${MTP_FLAGS[@]+"${MTP_FLAGS[@]}"})
shared+=(--pd_trans_mode nccl --pd_kv_page_size "$PD_KV_PAGE_SIZE" --pd_kv_page_num 2)
node prefill 1
prefill=("${NODE[@]}" "${shared[@]}" --disable_cudagraph)
node decode 2
decode=("${NODE[@]}" "${shared[@]}" "${GRAPHS[@]}")
master=("${LAUNCH[@]}" --host 127.0.0.1 --port "$MASTER_PORT" --run_mode pd_master)
master+=(--pd_master_mode 1p1d --max_req_total_len "$MAX_REQ_TOTAL_LEN")

if yes_no DRY_RUN; then
    printf '# prefill\n' && printf '%s\n' "${prefill[@]}"
    printf '# decode\n' && printf '%s\n' "${decode[@]}"
    printf '# master\n' && printf '%s\n' "${master[@]}"
    exit 0
fi
export_environment
LOG_DIR=${LOG_DIR:-./glm53_pd_logs}
mkdir -p -- "$LOG_DIR"
pids=()

# start NAME GPUS WORD...: in a session of its own, so that all its children can be stopped with it.
start() {
    local name=$1 gpus=$2
    shift 2
    CUDA_VISIBLE_DEVICES=$gpus setsid "$@" > "$LOG_DIR/$name.log" 2>&1 < /dev/null &
    pids+=("$!")
    printf '%s: pid %s, log %s\n' "$name" "$!" "$LOG_DIR/$name.log"
}

alive() {
    local pid
    for pid in ${pids[@]+"${pids[@]}"}; do
        if kill -0 -- "-$pid" 2> /dev/null; then
            return 0
        fi
    done
    return 1
}

# signal_all SIGNAL [WHOLE]: to the servers, or with WHOLE to all their processes.
signal_all() {
    local pid
    for pid in ${pids[@]+"${pids[@]}"}; do
        kill "-$1" -- "${2:+-}$pid" 2> /dev/null || true
    done
}

stop() {
    local left=$STOP_SECONDS
    trap '' INT TERM HUP
    signal_all TERM
    while ((left-- > 0)) && alive; do
        sleep 1
    done
    signal_all KILL whole
    wait || true
    pids=()
}

trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
start prefill "$PREFILL_GPUS" "${prefill[@]}"
start decode "$DECODE_GPUS" "${decode[@]}"
start master '' "${master[@]}"
wait -n || true
printf '%s\n' "${0##*/}: a server has ended, see the logs in $LOG_DIR; stopping the others" >&2
stop
exit 1

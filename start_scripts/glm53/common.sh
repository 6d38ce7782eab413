# shellcheck shell=bash disable=SC2034 # the scripts that source this use what it sets
# What the GLM-5.3 start scripts share: settings from the environment, and LightLLM's flags.
# Sourced, not run. The flags are those of scenarios/glm53-fp8kv.yaml, in the same order.

complain() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 2
}

# yes_no NAME: true for 1, false for 0 or unset; anything else is a mistake.
yes_no() {
    case "${!1-0}" in
        1) return 0 ;;
        0) return 1 ;;
        *) complain "$1 is 0 or 1, not '${!1}'" ;;
    esac
}

# whole NAME LEAST MOST: the setting is a whole number in that range.
whole() {
    if [[ ! ${!1} =~ ^(0|[1-9][0-9]{0,8})$ ]] || ((${!1} < $2 || ${!1} > $3)); then
        complain "$1 is a whole number from $2 to $3, not '${!1}'"
    fi
}

# gpu_list NAME: indices or UUIDs as CUDA_VISIBLE_DEVICES takes them, each once, and enough for TP.
gpu_list() {
    local gpu='(0|[1-9][0-9]{0,3}|(GPU|MIG)-[0-9A-Za-z/-]+)' one seen=,
    [[ ${!1} =~ ^$gpu(,$gpu)*$ ]] || complain "$1 is a list of GPUs such as 0,1,2,3, not '${!1}'"
    for one in ${!1//,/ }; do
        [[ $seen != *",$one,"* ]] || complain "$1 names GPU $one twice: ${!1}"
        seen+=$one,
    done
    one=${seen//[^,]/}
    ((${#one} > TP)) || complain "$1 names fewer GPUs than TP=$TP: ${!1}"
}

read_settings() {
    [[ -n ${MODEL_DIR:-} ]] || complain "set MODEL_DIR to the directory of GLM-5.3 Flash (-h lists the settings)"
    PYTHON=${PYTHON:-python}
    TP=${TP-4}
    whole TP 1 1024
    # Set to nothing it is a variable that somebody forgot: BF16 in its place would be a quiet mistake.
    [[ -n ${KV_TYPE-None} && -n ${LLM_KV_TYPE-None} ]] || complain "KV_TYPE or LLM_KV_TYPE is set to nothing"
    if [[ -n ${KV_TYPE:-} && -n ${LLM_KV_TYPE:-} && $KV_TYPE != "$LLM_KV_TYPE" ]]; then
        complain "KV_TYPE=$KV_TYPE and LLM_KV_TYPE=$LLM_KV_TYPE contradict each other; set one"
    fi
    KV_TYPE=${KV_TYPE:-${LLM_KV_TYPE:-None}}
    case $KV_TYPE in
        None | fp8kv_dsa) ;;
        *) complain "KV_TYPE is None or fp8kv_dsa, not $KV_TYPE" ;;
    esac
    LAUNCH=("$PYTHON" -m lightllm.server.api_server --model_dir "$MODEL_DIR" --model_name glm53)
}

export_environment() {
    export HF_DATASETS_OFFLINE=1 TRANSFORMERS_OFFLINE=1 HF_HUB_OFFLINE=1
    export http_proxy='' https_proxy='' HTTP_PROXY='' HTTPS_PROXY='' all_proxy='' ALL_PROXY=''
    export no_proxy="127.0.0.1,localhost,::1${NODE_IP:+,$NODE_IP}"
    export NO_PROXY=$no_proxy
    export LIGHTLLM_LOG_LEVEL=${LIGHTLLM_LOG_LEVEL:-debug}
    export LOADWORKER=${LOADWORKER:-8}
    export PYTHONUNBUFFERED=1
}

# The model and the size of the pool: normal, or small enough that requests have to pause.
pool_flags() {
    local total=65536 length=8192 running=32 batch=4096 chunk=512 hash=512
    if yes_no SMALL_POOL; then
        total=4096 length=3072 running=8 batch=1024 chunk=257 hash=128
    fi
    MAX_REQ_TOTAL_LEN=$length
    POOL=(
        --disable_vision
        --tp "$TP"
        --data_type bfloat16
        --llm_kv_type "$KV_TYPE"
        --page_size 16
        --max_total_token_num "$total"
        --max_req_total_len "$length"
        --running_max_req_size "$running"
        --batch_max_tokens "$batch"
        --chunked_prefill_size "$chunk"
    )
    GRAPHS=(--graph_max_batch_size "$running" --graph_max_len_in_batch 8192)
    LINEAR=(--linear_att_cache_size 8 --linear_att_hash_page_size "$hash")
    if yes_no SMALL_POOL; then
        LINEAR+=(--linear_att_page_block_num 2 --router_token_ratio 1.0)
    fi
}

mtp_flags() {
    MTP_FLAGS=()
    if yes_no MTP; then
        MTP_FLAGS=(--mtp_mode eagle_with_att --mtp_step 2 --mtp_draft_model_dir "$MODEL_DIR")
    fi
}

"""The servers of a prefill/decode lane: what they are told, what must fit, and what must agree."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from harness.engines.base import Launch
from harness.engines.environment import LOOPBACK

NODES = ("prefill", "decode")
RUN_MODES = {"normal": "normal", "prefill": "prefill", "decode": "decode", "master": "pd_master"}
MUST_AGREE: Mapping[str, tuple[str, ...]] = {
    "max_req_total_len": (*NODES, "master"),
    **dict.fromkeys(("max_image_pixels", "disable_image_resize"), ("prefill", "master")),
    **dict.fromkeys(
        (
            *("model", "dtype", "kv_dtype", "page_size", "hit_unit", "tp"),
            *("mtp_mode", "mtp_step", "linear_att_ssm_data_type"),
        ),
        (*NODES, "normal"),
    ),
    **dict.fromkeys(("pd_trans_mode", "pd_kv_page_size", "pd_kv_page_num"), NODES),
}


def node_arguments(launch: Launch) -> list[str]:
    """Its mode, and for a node where the master is; nothing for a server by itself."""
    found: list[str] = []
    if launch.role != "normal":
        found += ["--run_mode", RUN_MODES.get(launch.role, launch.role)]
    if launch.role in NODES and (master := launch.peers.get("master")):
        address = urlsplit(master)
        found += ["--pd_master_ip", str(address.hostname), "--pd_master_port", str(address.port)]
    return found


def node_problems(launch: Launch) -> list[str]:
    """What a prefill or decode node lacks."""
    found = []
    if launch.role in NODES and "master" not in launch.peers:
        found.append(f"a {launch.role} node needs a server with the role `master` in its lane")
    if launch.role in NODES and launch.host in LOOPBACK.split(","):
        found.append(
            f"a {launch.role} node ends itself on {launch.host}: it needs a network card's address "
            "(`host:` of the server; in the shipped scenarios --set params.NODE_IP=...)"
        )
    return found

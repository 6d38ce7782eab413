"""The simulated LightLLM with a small KV cache, as the FP8 procedure starts it for pause and resume."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.checks.base import CheckContext, ServerView
from harness.engines import ENGINES
from harness.engines.client import Client
from tests.simulator.launched import GLM, Launched, launched

MTP = ("--mtp_mode", "eagle_with_att", "--mtp_step", "2")
FLAGS = (
    *("--model_name", "glm53", "--tp", "4", "--data_type", "bfloat16", "--llm_kv_type", "fp8kv_dsa"),
    *("--page_size", "16", "--max_req_total_len", "3072", "--running_max_req_size", "8"),
    *("--batch_max_tokens", "1024", "--chunked_prefill_size", "257", "--linear_att_cache_size", "8"),
    *("--linear_att_hash_page_size", "128", "--linear_att_page_block_num", "2"),
    *("--router_token_ratio", "1.0"),
    *MTP,
)
SMALL, LARGE = "4096", "65536"  # tokens of the KV cache


@contextmanager
def serving(folder: Path, tokens: str | None, *flags: str, fault: str = "") -> Iterator[Launched]:
    """A ready server; its model's directory is `folder/model`, with a tokenizer of bytes. `tokens` of the KV
    cache; None: it profiles them."""
    folder.mkdir(parents=True, exist_ok=True)
    byte_tokenizer(folder / "model")
    draft = ("--mtp_draft_model_dir", str(folder / "model"))
    pool = () if tokens is None else ("--max_total_token_num", tokens)
    # Not as fast as possible: a request would be over before the next has come in.
    settings = {"speed": 0.1, "faults": [{"fault": fault}] if fault else []}
    with launched(
        folder,
        *(*FLAGS, *draft, *pool, *flags),
        settings=settings,
        model=GLM | {"model_type": "glm5_next_text"},
    ) as server:
        yield server.ready()


def context_of(server: Launched, folder: Path, **more: Any) -> CheckContext:
    """As the harness would make it for a check with this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    engine, url = ENGINES["lightllm"], f"http://127.0.0.1:{server.port}"
    with Client(url) as client:
        config = engine.effective_config(client, server.path)
    view = ServerView(role="normal", engine=engine, base_url=url, log=server.path, config=config)
    return CheckContext(
        engine=engine,
        base_url=url,
        served_name="glm53",
        folder=folder,
        server_log=server.path,
        start_command=_none,
        progress=lambda done, total: None,
        servers=(view,),
        model_path=str(server.path.parent / "model"),
        **more,
    )


def byte_tokenizer(folder: Path) -> None:
    """A `tokenizer.json` with a token for each byte, and the end of a text as the 257th."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={char: number for number, char in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|begin|>", "<|end|>"])
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))


def _none(*_: Any) -> Any:
    raise AssertionError("no program is started here")

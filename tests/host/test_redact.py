import time

import pytest

from harness.host.redact import (
    MASK,
    is_secret,
    redact_argv,
    redact_env,
    redact_settings,
    redact_text,
    secret_values,
    telling,
)

SECRETS = """
--api-key --api_key --admin-api-key --hf-token --token -token HF_TOKEN hfToken apiKey
HUGGING_FACE_HUB_TOKEN OPENAI_API_KEY AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID AWS_SESSION_TOKEN
WANDB_API_KEY PGPASSWORD --password --db-passwd MYSQL_PWD SMTP_PASS GITHUB_PAT APIKEY client_secret
GOOGLE_APPLICATION_CREDENTIALS --credential Authorization BASIC_AUTH auth_token --ssl-key-password
API_KEY_2 VLLM_API_KEY private_key key access.key
"""
ORDINARY = """
--tokenizer --tokenizer-path --tokenizer_mode max_tokens --max-new-tokens max_total_token_num
--max_total_token_num --batch_max_tokens --router_token_ratio eos_token pad_token --eos-token-id
stop_token_ids num_draft_tokens --speculative-num-draft-tokens monkey --keep OMP_NUM_THREADS
TOKENIZERS_PARALLELISM --kv-cache-dtype cache_type_k --key-cache-dtype KEYBOARD author XAUTHORITY
PWD OLDPWD PATH compass bypass --ssl-keyfile primary_key first_token turkey secretary
HARNESS_RUN_MARK time_per_output_token -- 123 prompt_cache_key_bytes --hockey
"""


@pytest.mark.parametrize("name", SECRETS.split())
def test_secret_names(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["", *ORDINARY.split()])
def test_ordinary_names(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        ("serve --api-key xyz --port 1", "serve --api-key *** --port 1"),
        ("serve --api-key=xyz=1 --port 1", "serve --api-key=*** --port 1"),
        ("serve --api-key one two --port 1", "serve --api-key *** *** --port 1"),
        ("serve --api-key -Xy12_zz9 --port 1", "serve --api-key *** --port 1"),
        ("serve --enable-auth --port 1", "serve --enable-auth --port 1"),
        ("serve --api-key", "serve --api-key"),
        ("serve --api-key EMPTY", "serve --api-key EMPTY"),
        ("serve -ngl 0 --token a -ctk bf16", "serve -ngl 0 --token *** -ctk bf16"),
        ("env HF_TOKEN=a,b python x.py", "env HF_TOKEN=*** python x.py"),
        ("--args model=m,api_key=xyz,num_concurrent=16", "--args model=m,api_key=***,num_concurrent=16"),
        ("--model_args api_key=xyz,model=m", "--model_args api_key=***,model=m"),
        ("--base_url http://me:pa@ss@host:80/v1", "--base_url http://***@host:80/v1"),
        ("--url http://host:80/?api_key=xyz&max_tokens=3", "--url http://host:80/?api_key=***&max_tokens=3"),
        ("--tokenizer a --max_total_token_num 9 --keep 3", "--tokenizer a --max_total_token_num 9 --keep 3"),
        ('--config {"api_key":"xyz","max_tokens":5}', '--config {"api_key":"***","max_tokens":5}'),
    ],
)  # fmt: skip
def test_argv(argv: str, shown: str) -> None:
    assert redact_argv(argv.split(" ")) == shown.split(" ")


def test_argv_with_spaces() -> None:
    header = redact_argv(["curl", "-H", "Authorization: Bearer abc.def-123", "-H", "X-Api-Key: xyz"])
    assert header == ["curl", "-H", "Authorization: Bearer ***", "-H", "X-Api-Key: ***"]
    assert redact_argv(["bash", "-c", "vllm serve m --api-key xyz --port 1"]) == [
        "bash", "-c", "vllm serve m --api-key *** --port 1",
    ]  # fmt: skip


def test_env() -> None:
    env = {
        "HF_TOKEN": "hf_abcdef",
        "EMPTY_API_KEY": "",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
        "http_proxy": "http://me:secret@proxy:3128",
        "OMP_NUM_THREADS": "2",
        "TOKENIZERS_PARALLELISM": "false",
        "CURL_HEADER": "Authorization: Basic bWU6cHc=",
    }
    assert redact_env(env) == {
        **env,
        "HF_TOKEN": "***",
        "http_proxy": "http://***@proxy:3128",
        "CURL_HEADER": "Authorization: Basic ***",
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("non-default: {'api_key': ['xyz'], 'port': 1}", "non-default: {'api_key': ***, 'port': 1}"),
        ("Args(api_key='x y', admin_api_key=None)", "Args(api_key='***', admin_api_key=None)"),
        ("Authorization: Bearer abc", "Authorization: Bearer ***"),
        ("authorization=Token abc", "authorization=Token ***"),
        ("{'Authorization': 'Bearer abc'}", "{'Authorization': 'Bearer ***'}"),
        ("sent bearer abcdef123", "sent bearer ***"),
        ("the bearer of news", "the bearer of news"),
        ("password: hunter2", "password: ***"),
        ("next token: 17, key: 4", "next token: 17, key: 4"),
        ("eos_token='</s>' pad_token=2 max_tokens=5", "eos_token='</s>' pad_token=2 max_tokens=5"),
        ("clone https://ghp_1234@github.com/x", "clone https://***@github.com/x"),
        ("see https://github.com/a@b and me@host", "see https://github.com/a@b and me@host"),
        ('"api_key": "a\\"b", "n": 1', '"api_key": "***", "n": 1'),
    ],
)  # fmt: skip
def test_text(text: str, shown: str) -> None:
    assert redact_text(text) == shown


def test_masking_twice_changes_nothing() -> None:
    once = redact_text("api_key=xyz Authorization: Bearer abcdefgh http://a:b@c/ --token t {'key': 'v'}")
    assert redact_text(once) == once
    assert redact_argv(redact_argv(["--api-key", "xyz"])) == ["--api-key", "***"]


def test_known_secrets_are_found_wherever_they_stand() -> None:
    known = secret_values(
        ["serve", "--api-key", "xyz", "sk-longer-secret", "--token=abc", "--port", "80"],
        {"HF_TOKEN": "hf_1234567890", "OPENAI_API_KEY": "EMPTY", "WANDB_API_KEY": "", "HOME": "/home/me"},
    )
    assert known == {"xyz", "sk-longer-secret", "abc", "hf_1234567890"}
    text = "got xyz, not xyzzy; urlsk-longer-secretz; EMPTY_RESPONSE; hf_1234567890"
    assert redact_text(text, known) == "got ***, not xyzzy; url***z; EMPTY_RESPONSE; ***"
    assert redact_text("a.b", ["", "a+b", "a.b"]) == "***"


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        "a.b-" * 250_000,
        "'" * 300_000,
        "x=" * 300_000,
        "://" * 300_000,
        "[" * 300_000,
        '"a": "' * 100_000,
        "a=[" * 100_000,
        "--a " * 200_000,
        "bearer " * 100_000,
    ],
)
def test_a_giant_line_takes_linear_time(text: str) -> None:
    began = time.process_time()
    redact_text(text)
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "word",
    [
        'lanes.a.flags."--hf-token"=sesame',
        "lanes.a.flags.'--hf-token'=sesame",
        "lanes.a.flags.--hf-token=sesame",
        "lanes.a.flags={--hf-token: sesame, --tp: 2}",
        'lanes.a.flags={"--hf-token": "sesame seed", --tp: 2}',
        "lanes.a.flags={-hft: sesame}",
        "lanes.a.flags={--api-key: [sesame, seed]}",
        "lanes.a.flags.--api-key=[sesame, seed]",
        "lanes={a: {env: {HF_TOKEN: sesame}}}",
        "lanes.a.env.HF_TOKEN=sesame seed",
        "params.API_KEY=sesame",
    ],
)
def test_overrides(word: str) -> None:
    for argv in (["run", "x", "--set", word, "--lane", "b"], ["run", "x", f"--set={word}", "--lane", "b"]):
        shown = " ".join(redact_argv(argv))
        assert "sesame" not in shown
        assert "seed" not in shown
        assert MASK in shown
        assert shown.endswith("--lane b")


@pytest.mark.parametrize(
    "word", ["params.TP=8", "lanes.a.model.served_name=my_token_model", "lanes.a.gpus=4"]
)
def test_ordinary_overrides_stay(word: str) -> None:
    assert redact_argv(["--set", word, f"--set={word}"]) == ["--set", word, f"--set={word}"]


def test_settings() -> None:
    given = {"--hf-token": "abc", "api_key.0": 17, "--api-key": ["a", "b"], "--tp": 2, "path": "/x/sesame/y"}
    assert redact_settings(given, ["sesame"]) == {
        "--hf-token": "***",
        "api_key.0": "***",
        "--api-key": ["***", "***"],
        "--tp": 2,
        "path": "/x/***/y",
    }
    assert redact_settings({"enable_auth": True, "hf_token": None}) == {"enable_auth": True, "hf_token": None}


def test_given_secrets_are_masked_in_other_words_too() -> None:
    argv = ["serve", "--hf-token", "sesame", "--chat-template", "my sesame"]
    assert redact_argv(argv, ["sesame"]) == ["serve", "--hf-token", "***", "--chat-template", "my ***"]
    assert redact_env({"NOTE": "my sesame"}, ["sesame"]) == {"NOTE": "my ***"}
    assert telling(["sesame", "short"]) == {"sesame"}

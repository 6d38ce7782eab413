"""The misbehaving server: well-behaved without a fault, and each fault does what it says and nothing else."""

import concurrent.futures
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.stub_faults import FAULTS, Faults
from tests.servers.stub_flags import BadFlag, parse
from tests.servers.stub_model import Model, decode, encode

pytestmark = pytest.mark.process

STUB = Path(__file__).with_name("llama_stub.py")
QUESTIONS = [f"Ann has {n} pens and buys {n + 2} more. How many has she?" for n in range(40)]
GOLD = [str(2 * n + 2) for n in range(40)]


class Stub:
    """A running stub. `log` is where it prints."""

    def __init__(self, folder: Path, fault: str, accuracy: float, *flags: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.log = folder / "server.log"
        self.url = f"127.0.0.1:{self.port}"
        argv = [
            sys.executable,
            str(STUB),
            "--model",
            str(folder / "m.gguf"),
            "--port",
            str(self.port),
            *flags,
        ]
        env = {"STUB_FAULT": fault, "STUB_ACCURACY": str(accuracy), "STUB_ANSWERS": str(folder / "key.jsonl")}
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(argv, stdout=out, stderr=out, env={**os.environ, **env})

    def call(self, method: str, path: str, body: Any = None, limit_s: float = 10) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.url, timeout=limit_s)
        try:
            data = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
            is_json = response.headers.get_content_type() == "application/json"
            return response.status, json.loads(text) if is_json else text.decode()
        finally:
            connection.close()

    def completions(self, *prompts: str, **settings: Any) -> tuple[int, Any]:
        body = {"prompt": list(prompts), "max_tokens": 100, "temperature": 0, **settings}
        return self.call("POST", "/v1/completions", body)

    def ready(self) -> bool:
        try:
            return self.call("GET", "/health")[0] == 200
        except OSError:
            return False

    def text(self) -> str:
        return self.log.read_bytes().decode("utf-8", "replace")


def wait_for(what: Callable[[], bool], limit_s: float = 15.0) -> None:
    deadline = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def question(number: int) -> str:
    """A prompt as lm-eval sends it: shots, then the question."""
    return f"Question: What is 1 + 1?\nAnswer: 2\n#### 2\n\nQuestion: {QUESTIONS[number]}\nAnswer:"


Start = Callable[..., Stub]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with (tmp_path / "key.jsonl").open("w") as key:
        for asked, gold in zip(QUESTIONS, GOLD, strict=True):
            key.write(json.dumps({"question": asked, "answer": f"Adding up.\n#### {gold}"}) + "\n")
    started: list[Stub] = []

    def begin(fault: str = "", *flags: str, accuracy: float = 1.0, ready: bool = True) -> Stub:
        stub = Stub(tmp_path, fault, accuracy, *flags)
        started.append(stub)
        if ready:
            wait_for(stub.ready)
        return stub

    yield begin
    for stub in started:
        stub.process.kill()
        stub.process.wait()


def right(choices: list[dict[str, Any]]) -> list[bool]:
    return [str(choice["text"]).endswith(f"#### {GOLD[choice['index']]}") for choice in choices]


class TestWithoutFaults:
    def test_it_looks_like_llama_cpp(self, start: Start) -> None:
        stub = start("", "--alias", "m1", "--ctx-size", "4096", "--parallel", "2", "--metrics", "-lv", "4")
        assert stub.call("GET", "/v1/models")[1]["data"][0]["id"] == "m1"
        props = stub.call("GET", "/props")[1]
        assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (2, 2048)
        assert [slot["n_ctx"] for slot in stub.call("GET", "/slots")[1]] == [2048, 2048]
        assert stub.call("GET", "/nothing")[0] == 404
        ids = stub.call("POST", "/tokenize", {"content": "naïve!"})[1]["tokens"]
        assert stub.call("POST", "/detokenize", {"tokens": ids})[1] == {"content": "naïve!"}
        stub.completions("a b")
        metrics = stub.call("GET", "/metrics")[1]
        assert "llamacpp:prompt_tokens_total 2\n" in metrics
        log = stub.text()
        for line in (
            "loading model",
            "K (f16)",
            "model loaded",
            f"listening on http://127.0.0.1:{stub.port}",
        ):
            assert line in log
        assert "print_timing: id  0 | task 0 | prompt eval time" in log
        assert " E " not in log

    def test_native_completion_by_text_and_by_token_ids(self, start: Start) -> None:
        stub = start("", "--alias", "m1")
        text = {"prompt": "Hello there", "n_predict": 5, "return_tokens": True, "n_probs": 2}
        by_text = stub.call("POST", "/completion", text)[1]
        assert by_text["stop_type"] == "limit"
        assert len(by_text["tokens"]) == by_text["tokens_predicted"] == 5
        assert len(by_text["completion_probabilities"][0]["top_logprobs"]) == 2
        by_ids = stub.call("POST", "/completion", {**text, "prompt": encode("Hello there")})[1]
        assert by_ids["tokens"] == by_text["tokens"]
        # a repeated prompt is cached but for its last token
        assert (by_text["timings"]["cache_n"], by_ids["timings"]["cache_n"]) == (
            0,
            by_ids["tokens_evaluated"] - 1,
        )
        cold = stub.call("POST", "/completion", {**text, "cache_prompt": False})[1]
        assert cold["timings"]["cache_n"] == 0
        assert cold["tokens"] == by_text["tokens"]
        long = stub.call("POST", "/completion", {**text, "n_predict": 300, "ignore_eos": True})[1]
        assert (long["stop_type"], len(long["tokens"])) == ("limit", 300)
        whole = stub.call("POST", "/completion", {"prompt": "Hello there"})[1]
        assert whole["stop_type"] == "eos"
        batch = stub.call("POST", "/completion", {"prompt": ["Hello there", "b"]})[1]
        assert [item["index"] for item in batch] == [0, 1]
        assert batch[0]["content"] == whole["content"]

    def test_batch_of_completions_and_chat(self, start: Start) -> None:
        stub = start()
        status, body = stub.completions("a", "b", "a")
        assert status == 200
        texts = [choice["text"] for choice in body["choices"]]
        assert texts[0] == texts[2] != texts[1]
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
        assert body["usage"]["prompt_tokens"] == 1
        assert len(stub.completions("a", n=2)[1]["choices"]) == 2
        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        choice = stub.call("POST", "/v1/chat/completions", chat)[1]["choices"][0]
        assert choice["finish_reason"] == "length"
        assert choice["message"]["content"]
        stopped = stub.completions("a", stop=[texts[0][4:8]])[1]["choices"][0]
        assert (stopped["text"], stopped["finish_reason"]) == (texts[0][:4], "stop")

    @pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
    def test_streams_add_up_to_the_whole(self, start: Start, path: str) -> None:
        stub = start()
        body = {"prompt": "naïve", "messages": [{"role": "user", "content": "x"}], "max_tokens": 50}
        whole = stub.call("POST", path, body)[1]
        stream = stub.call("POST", path, {**body, "stream": True})[1]
        events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]

        def text(answer: dict[str, Any]) -> str:
            choice = answer.get("choices", [answer])[0]
            return (
                choice.get("content")
                or choice.get("text")
                or (choice.get("message") or choice.get("delta") or {}).get("content")
                or ""
            )

        assert len(events) > 3
        assert "".join(map(text, events)) == text(whole)

    @pytest.mark.parametrize("body", [b"{bad", b"[]", b"{}"])
    def test_bad_requests_are_refused(self, start: Start, body: bytes) -> None:
        stub = start()
        assert stub.call("POST", "/v1/completions", body)[0] == 400
        assert stub.ready()

    def test_answer_key_is_right_for_its_share_and_the_rest_flips_downward(self, start: Start) -> None:
        prompts = [question(number) for number in range(40)]
        all_right = right(start().completions(*prompts)[1]["choices"])
        assert all(all_right)
        most = right(start(accuracy=0.7).completions(*prompts)[1]["choices"])
        few = right(start(accuracy=0.3).completions(*prompts)[1]["choices"])
        assert 20 <= sum(most) <= 36
        assert 4 <= sum(few) <= 20
        assert all(one or not other for one, other in zip(most, few, strict=True))

    def test_many_clients_at_once(self, start: Start) -> None:
        stub = start()
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(lambda number: stub.completions(question(number % 40)), range(128)))
        for number, (status, body) in enumerate(answers):
            assert status == 200
            assert body["choices"][0]["text"].endswith(GOLD[number % 40])

    def test_it_starts_as_a_program_and_ends_on_sigterm(self, tmp_path: Path) -> None:
        (tmp_path / "m.gguf").write_bytes(b"GGUF")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        argv = [str(STUB), "-m", str(tmp_path / "m.gguf"), "--port", str(port)]
        with subprocess.Popen(argv, cwd="/", stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            wait_for(lambda: b"listening on" in process.stderr.readline())  # type: ignore[union-attr]
            process.terminate()
            assert process.wait(10) == -signal.SIGTERM


class TestFailedStarts:
    def ended(self, stub: Stub) -> int:
        return stub.process.wait(15)

    def test_unknown_flag(self, start: Start) -> None:
        stub = start("", "--ctx-sise", "4096", ready=False)
        assert self.ended(stub) == 1
        assert stub.text() == "error: invalid argument: --ctx-sise\n"

    @pytest.mark.parametrize("argv", [["--port"], ["-m", "x", "-ctk", "q9_0"], []])
    def test_other_bad_command_lines(self, argv: list[str]) -> None:
        with pytest.raises(BadFlag):
            parse(argv)

    def test_missing_model(self, start: Start, tmp_path: Path) -> None:
        stub = start("", "--model", str(tmp_path / "absent.gguf"), ready=False)
        assert self.ended(stub) == 1
        assert "failed to open GGUF file" in stub.text()

    def test_taken_port(self, start: Start) -> None:
        first = start()
        second = start("", "--port", str(first.port), ready=False)
        assert self.ended(second) == 1
        assert "couldn't bind HTTP server socket" in second.text()
        assert first.ready()

    def test_exit_at_start(self, start: Start) -> None:
        assert self.ended(start("exit-at-start:7", ready=False)) == 7
        assert self.ended(start("exit-at-start", ready=False)) == 1

    def test_die_while_loading(self, start: Start) -> None:
        stub = start("die-while-loading", ready=False)
        assert self.ended(stub) == 1
        assert "model is corrupted or incomplete" in stub.text()

    def test_never_ready(self, start: Start) -> None:
        stub = start("never-ready", ready=False)
        wait_for(lambda: "loading model" in stub.text())
        assert stub.call("GET", "/health") == (
            503,
            {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}},
        )
        assert stub.call("GET", "/v1/models")[0] == 503
        assert "listening" not in stub.text()

    def test_slow_start_shows_progress(self, start: Start) -> None:
        started = time.monotonic()
        stub = start("slow-start:1")
        assert time.monotonic() - started >= 1
        assert stub.text().count("assigned to device") == 5


class TestFaultsOfLife:
    def test_fatal_log_while_it_answers(self, start: Start) -> None:
        stub = start("fatal-log")
        wait_for(lambda: "cudaMalloc failed: out of memory" in stub.text())
        assert stub.completions("a")[0] == 200

    def test_wrong_model(self, start: Start) -> None:
        stub = start("wrong-model", "--alias", "m1")
        assert stub.call("GET", "/v1/models")[1]["data"][0]["id"] != "m1"

    def test_ignore_sigterm(self, start: Start) -> None:
        stub = start("ignore-sigterm")
        stub.process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            stub.process.wait(0.5)
        assert stub.ready()

    def test_setsid_child_outlives_its_parent_and_holds_the_port(self, start: Start) -> None:
        stub = start("setsid-child")
        path = Path(f"/proc/{stub.process.pid}/task/{stub.process.pid}/children")
        (child,) = map(int, path.read_text().split())
        try:
            stub.process.terminate()
            assert stub.process.wait(10) == -signal.SIGTERM
            os.kill(child, signal.SIGTERM)
            assert os.getsid(child) == child
            with pytest.raises(OSError, match="in use"), socket.socket() as probe:
                probe.bind(("127.0.0.1", stub.port))
        finally:
            os.kill(child, signal.SIGKILL)

    def test_die_after(self, start: Start) -> None:
        stub = start("die-after:3")
        assert stub.completions("a", "b", "c")[0] == 200
        with pytest.raises((OSError, http.client.HTTPException)):
            stub.completions("d")
        assert stub.process.wait(10) == -signal.SIGKILL

    def test_hang_after(self, start: Start) -> None:
        stub = start("hang-after:1")
        assert stub.completions("a")[0] == 200
        with pytest.raises(TimeoutError):
            stub.call("POST", "/v1/completions", {"prompt": "b"}, limit_s=0.3)
        assert stub.ready()

    def test_slow_answers(self, start: Start) -> None:
        stub = start("slow-answers:0.3")
        started = time.monotonic()
        stub.completions("a")
        assert time.monotonic() - started >= 0.3

    def test_warmup_fails(self, start: Start) -> None:
        stub = start("warmup-fails")
        assert stub.completions("a")[0] == 500
        assert stub.ready()

    def test_shm_leak(self, start: Start) -> None:
        stub = start("shm-leak")
        leaked = Path(f"/dev/shm/llama_stub_{stub.process.pid}")
        try:
            wait_for(leaked.exists)
            wait_for(
                lambda: str(leaked) in map(os.path.realpath, Path(f"/proc/{stub.process.pid}/fd").iterdir())
            )
            stub.process.terminate()
            stub.process.wait(10)
            assert leaked.exists()
        finally:
            leaked.unlink(missing_ok=True)

    def test_chatty_and_chinese_log(self, start: Start) -> None:
        stub = start("chatty,chinese-log")
        wait_for(lambda: stub.log.stat().st_size > 7_000_000)
        assert "显存" in stub.text()
        assert b"\xff" in stub.log.read_bytes()
        assert stub.completions("a")[0] == 200


class TestFaultsOfAnswers:
    PROMPTS = tuple(question(number) for number in range(40))

    def choices(self, stub: Stub) -> list[dict[str, Any]]:
        status, body = stub.completions(*self.PROMPTS)
        assert status == 200
        loaded: list[dict[str, Any]] = body["choices"]
        return loaded

    def test_error_share_is_of_single_prompts_and_stays(self, start: Start) -> None:
        stub = start("error-share:0.3")
        once = [stub.completions(prompt)[0] for prompt in self.PROMPTS]
        assert 4 <= once.count(500) <= 22
        assert set(once) == {200, 500}
        assert [stub.completions(prompt)[0] for prompt in self.PROMPTS] == once
        assert stub.completions("a warm-up")[0] == 200

    def test_error_once_share_is_gone_the_second_time(self, start: Start) -> None:
        stub = start("error-once-share:0.3")
        assert 4 <= [stub.completions(prompt)[0] for prompt in self.PROMPTS].count(500) <= 22
        assert {stub.completions(prompt)[0] for prompt in self.PROMPTS} == {200}

    @pytest.mark.parametrize(("fault", "text"), [("null-answers", None), ("empty-answers", "")])
    def test_null_and_empty_answers(self, start: Start, fault: str, text: str | None) -> None:
        choices = self.choices(start(f"{fault}:0.3"))
        gone = [choice for choice in choices if choice["text"] == text]
        assert 4 <= len(gone) <= 22
        assert all(right([choice])[0] for choice in choices if choice not in gone)

    def test_cut_answers(self, start: Start) -> None:
        choices = self.choices(start("cut-answers:0.3"))
        cut = [choice for choice in choices if choice["finish_reason"] == "length"]
        assert 4 <= len(cut) <= 22
        assert not any("####" in choice["text"] for choice in cut)

    def test_loop_answers(self, start: Start) -> None:
        choices = self.choices(start("loop-answers:0.3"))
        loops = [choice for choice in choices if choice["text"].count("and so it goes on") > 5]
        assert 4 <= len(loops) <= 22

    def test_drop_choice(self, start: Start) -> None:
        choices = self.choices(start("drop-choice:0.3"))
        assert 18 <= len(choices) <= 36
        assert all(right(choices))

    def test_swap_answers(self, start: Start) -> None:
        choices = self.choices(start("swap-answers"))
        assert [choice["index"] for choice in choices] == list(range(40))
        assert not any(right(choices))

    def test_garbage_json(self, start: Start) -> None:
        stub = start("garbage-json")
        with pytest.raises(ValueError, match=r"Unterminated|Expecting|delimiter"):
            stub.completions("a")


def test_every_fault_has_a_test() -> None:
    tests = Path(__file__).read_text(encoding="utf-8")
    assert [fault for fault in FAULTS if f'"{fault}' not in tests and f",{fault}" not in tests] == []


def test_unknown_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="no fault 'die-affter'"):
        Faults("chatty,die-affter:3")


@pytest.mark.parametrize("text", ["", "a", "ab", "naïve 你好 \U0001f600", "\x00\n", "x" * 1001])
def test_tokens_can_be_undone(text: str) -> None:
    assert decode(encode(text)).decode() == text


def test_answers_depend_on_the_prompt_alone() -> None:
    one, other = (Model(Faults(""), None, 1.0, 4) for _ in range(2))
    assert one.generate("a", {}, -1).text == other.generate("a", {}, -1).text
    assert one.generate("b", {}, -1).text != other.generate("a", {}, -1).text

"""Finding codes and what each does to a verdict. No third-party import: the command line needs it at once."""

from enum import StrEnum

from harness.verdict import Verdict


class Code(StrEnum):
    """Stable codes. Scripts grep for these; a code is never renamed, only added."""

    # a server's start and life
    PORT_TAKEN = "PORT_TAKEN"
    SERVER_EXITED = "SERVER_EXITED"
    SERVER_DIED = "SERVER_DIED"
    START_TIMEOUT = "START_TIMEOUT"
    FATAL_LOG = "FATAL_LOG"
    WRONG_MODEL = "WRONG_MODEL"
    NOT_OUR_PORT = "NOT_OUR_PORT"
    WARMUP_FAILED = "WARMUP_FAILED"
    CONFIG_REWRITTEN = "CONFIG_REWRITTEN"
    STALLED = "STALLED"
    # release
    RELEASE_PROCESS = "RELEASE_PROCESS"
    RELEASE_PORT = "RELEASE_PORT"
    RELEASE_SHM = "RELEASE_SHM"
    FORCED_KILL = "FORCED_KILL"
    # samples of one lane
    MISSING_DOC = "MISSING_DOC"
    DUPLICATE_DOC = "DUPLICATE_DOC"
    UNEXPECTED_DOC = "UNEXPECTED_DOC"
    FILTER_MISSING = "FILTER_MISSING"
    EMPTY_RESPONSE = "EMPTY_RESPONSE"
    HASH_MISMATCH = "HASH_MISMATCH"
    SCORE_MISMATCH = "SCORE_MISMATCH"
    RESULTS_MISMATCH = "RESULTS_MISMATCH"
    LIMIT_USED = "LIMIT_USED"
    SAMPLES_UNREADABLE = "SAMPLES_UNREADABLE"
    EVALUATOR_FAILED = "EVALUATOR_FAILED"
    REQUEST_FAILED = "REQUEST_FAILED"
    REQUEST_RETRIED = "REQUEST_RETRIED"
    REQUEST_COUNT = "REQUEST_COUNT"
    TRUNCATED = "TRUNCATED"
    NO_FINAL_ANSWER = "NO_FINAL_ANSWER"
    DEGENERATE = "DEGENERATE"
    STOP_RATE = "STOP_RATE"
    # a pair
    INPUT_MISMATCH = "INPUT_MISMATCH"
    TARGET_MISMATCH = "TARGET_MISMATCH"
    PARITY = "PARITY"
    PARITY_UNKNOWN = "PARITY_UNKNOWN"
    LANE_UNSOUND = "LANE_UNSOUND"
    MARGIN_EXCEEDED = "MARGIN_EXCEEDED"
    MARGIN_UNDECIDED = "MARGIN_UNDECIDED"
    # the run
    EVIDENCE_MISSING = "EVIDENCE_MISSING"
    DISK_FULL = "DISK_FULL"
    INTERRUPTED = "INTERRUPTED"
    NOT_RUN = "NOT_RUN"
    HARNESS_BUG = "HARNESS_BUG"


# What a finding makes of a verdict by itself; None is information that a person should read.
EFFECT: dict[Code, Verdict | None] = {
    Code.PORT_TAKEN: Verdict.INFRA,
    Code.SERVER_EXITED: Verdict.FAIL,
    Code.SERVER_DIED: Verdict.FAIL,
    Code.START_TIMEOUT: Verdict.FAIL,
    Code.FATAL_LOG: Verdict.FAIL,
    Code.WRONG_MODEL: Verdict.INVALID,
    Code.NOT_OUR_PORT: Verdict.INFRA,
    Code.WARMUP_FAILED: Verdict.FAIL,
    Code.CONFIG_REWRITTEN: Verdict.INVALID,
    Code.STALLED: Verdict.FAIL,
    Code.RELEASE_PROCESS: Verdict.INFRA,
    Code.RELEASE_PORT: Verdict.INFRA,
    Code.RELEASE_SHM: Verdict.INFRA,
    Code.FORCED_KILL: None,
    Code.MISSING_DOC: Verdict.INVALID,
    Code.DUPLICATE_DOC: Verdict.INVALID,
    Code.UNEXPECTED_DOC: Verdict.INVALID,
    Code.FILTER_MISSING: Verdict.INVALID,
    Code.EMPTY_RESPONSE: Verdict.INVALID,
    Code.HASH_MISMATCH: Verdict.INVALID,
    Code.SCORE_MISMATCH: Verdict.INVALID,
    Code.RESULTS_MISMATCH: Verdict.INVALID,
    Code.LIMIT_USED: Verdict.INVALID,
    Code.SAMPLES_UNREADABLE: Verdict.INVALID,
    Code.EVALUATOR_FAILED: Verdict.INVALID,
    Code.REQUEST_FAILED: Verdict.INVALID,
    Code.REQUEST_RETRIED: Verdict.INVALID,
    Code.REQUEST_COUNT: Verdict.INVALID,
    Code.TRUNCATED: None,
    Code.NO_FINAL_ANSWER: None,
    Code.DEGENERATE: None,
    Code.STOP_RATE: Verdict.FAIL,
    Code.INPUT_MISMATCH: Verdict.INVALID,
    Code.TARGET_MISMATCH: Verdict.INVALID,
    Code.PARITY: Verdict.INVALID,
    Code.PARITY_UNKNOWN: Verdict.REPORTED,
    Code.LANE_UNSOUND: Verdict.INVALID,
    Code.MARGIN_EXCEEDED: Verdict.FAIL,
    Code.MARGIN_UNDECIDED: Verdict.INCONCLUSIVE,
    Code.EVIDENCE_MISSING: Verdict.INVALID,
    Code.DISK_FULL: Verdict.INFRA,
    Code.INTERRUPTED: Verdict.INFRA,
    Code.NOT_RUN: Verdict.SKIPPED,
    Code.HARNESS_BUG: Verdict.INFRA,
}

"""Whose fault it is. The class of an error decides the verdict; the text is for people.

Every message says what happened, the likely cause, what to do, and where the evidence is.
"""

from typing import TYPE_CHECKING

from harness.codes import Code

if TYPE_CHECKING:
    from harness.findings import Finding


class Problem(Exception):
    """Base of all foreseen errors.

    `what` is one sentence; `cause`, `fix` and `evidence` are shown under it when given.
    """

    default_code = Code.HARNESS_BUG

    def __init__(
        self, what: str, *, cause: str = "", fix: str = "", evidence: str = "", code: Code | None = None
    ) -> None:
        super().__init__(what)
        self.what = what
        self.cause = cause
        self.fix = fix
        self.evidence = evidence
        self.code = code or self.default_code

    def __str__(self) -> str:
        parts = [self.what]
        for label, text in (("likely cause", self.cause), ("what to do", self.fix), ("see", self.evidence)):
            if text:
                parts.append(f"  {label}: {text}")
        return "\n".join(parts)

    def finding(self) -> "Finding":
        """The same as a finding, for the record."""
        from harness.findings import Finding  # pydantic costs 0.1 s that `--help` should not pay

        parts = [self.what]
        parts += [f"likely cause: {self.cause}"] if self.cause else []
        parts += [f"what to do: {self.fix}"] if self.fix else []
        sentence = "; ".join(parts)
        return Finding(code=self.code, message=sentence, where=self.evidence)


class ConfigError(Problem):
    """Yours: the scenario, a flag or the command line. Nothing has been started. Exit code 2.

    `problems` holds every problem found, so that one look mends all of them.
    """

    default_code = Code.HOST_FAULT  # if it comes up only after the start: a program or file is missing

    def __init__(self, what: str, *, problems: tuple[str, ...] = (), fix: str = "") -> None:
        super().__init__(what, fix=fix)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  - {problem}" for problem in self.problems)])


class TargetError(Problem):
    """The server's: it died, hung, answered wrongly. The code decides FAIL or INVALID."""

    default_code = Code.SERVER_DIED


class HarnessError(Problem):
    """Ours or the host's: no free port, disk full, evaluator missing. Says nothing about the engine."""

    default_code = Code.HOST_FAULT


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM: everything is released, the record says interrupted, exit code 130.

    Like KeyboardInterrupt, no `except Exception` may swallow it.
    """

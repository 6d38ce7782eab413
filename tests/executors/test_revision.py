"""Which commit the harness runs from; nothing, quickly, where that is not known."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from harness.executors.revision import revision

pytestmark = pytest.mark.process
WHO = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
}


def _git(folder: Path, *words: str) -> str:
    env = {**os.environ, **WHO, "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    _git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("one")
    _git(tmp_path, "add", "file")
    _git(tmp_path, "commit", "--quiet", "--message", "first")
    _git(tmp_path, "tag", "--annotate", "v1", "--message", "a tag is no commit")
    return tmp_path


def test_the_commit_and_whether_files_differ(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = _git(checkout, "rev-parse", "--short=12", "HEAD")
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # somebody's hook that runs the harness
    assert revision(checkout) == commit
    (checkout / "file").write_text("two")
    assert revision(checkout) == f"{commit}-dirty"


def test_a_repository_further_up_is_not_ours(checkout: Path) -> None:
    inside = checkout / "site-packages"
    inside.mkdir()
    assert revision(inside) == ""


def test_broken_or_empty_repositories_are_nothing(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: /nowhere\n")
    assert revision(tmp_path) == ""
    (tmp_path / ".git").unlink()
    _git(tmp_path, "init", "--quiet")
    assert revision(tmp_path) == ""


def test_without_git_it_is_nothing_at_once(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    began = time.monotonic()
    assert revision(checkout) == ""
    assert time.monotonic() - began < 1


def test_a_git_that_hangs_is_given_up(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = checkout / "git"
    fake.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(checkout))
    monkeypatch.setattr("harness.host.git.PATIENCE_S", 0.2)
    assert revision(checkout) == ""

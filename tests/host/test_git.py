"""Which repository a package is run from; never one that merely surrounds it."""

import os
import subprocess
from pathlib import Path

import pytest

from harness.host.git import checkout_of, describe

pytestmark = pytest.mark.process
WHO = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(folder: Path, *words: str) -> None:
    env = {**os.environ, **WHO, "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "-C", str(folder), *words], env=env, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """With `python/engine`, which git keeps, and a virtual environment, which it does not."""
    top = tmp_path / "top"
    for folder in ("python/engine", "venv/lib/engine"):
        (top / folder).mkdir(parents=True)
        (top / folder / "core.py").write_text("one")
    git(top, "init", "--quiet")
    git(top, "add", "python")
    git(top, "commit", "--quiet", "--message", "first")
    git(top, "tag", "v1")
    return top


def test_a_package_that_git_keeps(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # somebody's hook
    assert checkout_of(checkout / "python" / "engine") == checkout
    (checkout.parent / "link").symlink_to(checkout / "python")
    assert checkout_of(checkout.parent / "link" / "engine") == checkout
    assert describe(checkout, "--tags", "--dirty") == "v1"
    (checkout / "python" / "engine" / "core.py").write_text("two")
    assert describe(checkout, "--tags", "--dirty") == "v1-dirty"


def test_a_package_that_only_lies_in_a_checkout(checkout: Path) -> None:
    assert checkout_of(checkout / "venv" / "lib" / "engine") is None
    assert describe(checkout / "python", "--tags") == ""


def test_no_repository_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkout_of(tmp_path / "none") is None
    (tmp_path / ".git").mkdir()  # nothing in it
    assert checkout_of(tmp_path) is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert (checkout_of(tmp_path), describe(tmp_path)) == (None, "")

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.nvml.machine import Machine

SOURCE = Path(__file__).with_name("fake_nvml.c")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for libnvidia-ml.so.1, compiled once."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the stand-in for libnvidia-ml.so.1 cannot be built")
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    command = [compiler, "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(path), str(SOURCE)]
    built = subprocess.run([*command, "-lpthread"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return path


@pytest.fixture
def machine(library: Path, tmp_path: Path) -> Machine:
    return Machine(tmp_path, library)

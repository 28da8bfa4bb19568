"""The examples of README.md run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Server

README = Path(__file__).parents[1] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)


def test_the_readme_has_its_examples() -> None:
    assert len(EXAMPLES) == 7


@pytest.mark.parametrize("number", range(6))
def test_an_example_runs(server: Server, number: int) -> None:
    environment = {**server.environment(), "PYTHONPATH": os.pathsep.join(sys.path), "MONGODB_URI": server.uri}
    del environment["MONGOSEAL_URI"]
    done = subprocess.run([sys.executable, "-c", EXAMPLES[number]], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "token" in done.stdout and not done.stderr


def test_the_example_of_a_test_passes(tmp_path: Path) -> None:
    path = tmp_path / "test_example.py"
    path.write_text(EXAMPLES[6])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(path)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout


def test_the_examples_are_typed(tmp_path: Path) -> None:
    for number, example in enumerate(EXAMPLES):
        (tmp_path / f"example_{number}.py").write_text(example)
    environment = {**os.environ, "MYPYPATH": str(Path(__file__).parents[1] / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--disable-error-code=var-annotated", "--disable-error-code=import-untyped", "--cache-dir", str(tmp_path / "cache"), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout

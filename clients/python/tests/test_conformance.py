"""The conformance test of the pipe protocol, with the adapters of both clients."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROTOCOL = HERE.parents[2] / "protocol"


@pytest.mark.parametrize("adapter", ["adapter.py", "adapter_aio.py"])
def test_the_client_passes_all_cases(adapter: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PROTOCOL / "pipe-conformance.py"), "--", sys.executable, str(HERE / adapter)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed, 0 skipped" in done.stdout

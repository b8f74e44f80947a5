"""Models that fit into no memory are captured in little: without weights, slots or gradients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
GIB = 2**30

# Name in `tests.capture.large` -> GiB that its variables stand for, at least.
CASES = [
    pytest.param("rnn-2-small", 0.0),
    pytest.param("rnn-10-8k", 57.0, marks=pytest.mark.slow),
    pytest.param("wresnet-152-10", 43.0, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("name, held", CASES)
def test_memory_does_not_grow_with_the_model(name: str, held: float) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.capture.large", name],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["held"] > held * GIB
    assert found["grown"] < 2 * GIB

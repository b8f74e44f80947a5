"""Runs a Python program of this repository in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The finished process of ``python path arguments``, with its output as text."""
    return subprocess.run(
        [sys.executable, str(ROOT / path), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )

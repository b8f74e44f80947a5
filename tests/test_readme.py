"""What README.md and CONTRIBUTING.md tell people to run works, as written there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_example_runs(tmp_path: Path) -> None:
    (example,) = blocks("python")
    assert len([line for line in example.splitlines() if line]) == 10
    run = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "Epoch 2/2" in run.stdout  # Keras's own progress
    assert re.search(r"dense/kernel +64x512 +f32\[.*@d0", run.stdout), run.stdout


def test_the_checks_end_with_the_test_command() -> None:
    command = blocks("sh")[1].strip()
    assert command.endswith("pytest -q -n auto")
    assert (ROOT / ".ci" / "run").read_text().rstrip().splitlines()[-1] == command


def test_the_main_command_names_flags_that_exist() -> None:
    _, _, call = blocks("sh")[0].strip().rpartition(" && ")
    _, script, *flags = call.split()
    defined = re.findall(r'DEFINE_\w+\(\s*"(\w+)"', (ROOT / script).read_text())
    assert {flag.lstrip("-").partition("=")[0] for flag in flags} <= set(defined)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/paper_map.md"])
def test_paths_that_are_named_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    named = set(re.findall(r"`((?:tofu_tf|tests|docs|examples)/[\w./]*)`", text))
    linked = {
        str(Path(page).parent / link)
        for link in re.findall(r"\]\(([^)#]+)\)", text)
        if "://" not in link
    }
    assert [path for path in sorted(named | linked) if not (ROOT / path).exists()] == []

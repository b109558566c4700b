"""Shell completion: what a shell is told when a user presses Tab."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REINET = str(Path(sys.executable).with_name("reinet"))


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("reinet jobs su", {"submit"}), ("reinet models ro", {"rollback"}), ("reinet trai", {"train", "trainer"}),
     ("reinet jobs submit --no", {"--note"})],
)  # fmt: skip
def test_bash_is_offered_commands_and_options(typed: str, offered: set[str]) -> None:
    asked = {"_REINET_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    done = subprocess.run([REINET], env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell: str) -> None:
    done = subprocess.run(
        [REINET, "--show-completion", shell], env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "_REINET_COMPLETE" in done.stdout

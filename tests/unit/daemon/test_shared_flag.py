"""What the loader knows of a pause and of targets: as soon as whoever asked, and whatever becomes of who obeys."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from reinet.agents.decide.inspection.own_targets import MOST_OWN
from reinet.agents.decide.loop import ControlLoop
from reinet.core.target import Target
from reinet.daemon.config import DaemonConfig
from reinet.daemon.processes.asked import MOST_BYTES, Asked
from reinet.daemon.processes.decide import Followed, _Kept
from reinet.daemon.processes.shared_flag import SharedFlag
from reinet.daemon.processes.shared_text import SharedText
from reinet.daemon.serve import agent_for


def kept(flag: SharedFlag, **calls: Any) -> _Kept:
    config = DaemonConfig(model="rule", cgroups=(Path("/unused"),))
    asked = Asked()
    asked.pause = flag
    return _Kept(cast(ControlLoop, SimpleNamespace(**calls)), Followed(config, "", agent_for), asked)


def test_what_a_process_that_died_has_said_is_known() -> None:
    flag = SharedFlag()
    for said in (True, False):
        if not (pid := os.fork()):
            flag.set(said)
            os._exit(0)
        os.waitpid(pid, 0)
        assert bool(flag) is said


def test_a_pause_and_its_end_are_known_before_they_are_answered() -> None:
    flag = SharedFlag()
    known: list[bool] = []
    loop = kept(flag, pause=lambda: known.append(bool(flag)), resume=lambda: known.append(bool(flag)))
    loop.pause()
    loop.resume()
    assert known == [True, False]


def test_a_pause_that_a_loop_will_obey_when_it_goes_on_is_known_too() -> None:
    def hangs() -> int:
        raise TimeoutError("the decision loop did not answer")

    flag = SharedFlag()
    with pytest.raises(TimeoutError):
        kept(flag, pause=hangs).pause()
    assert flag


def test_a_text_that_a_process_that_died_has_written_is_read_and_half_a_text_never() -> None:
    text = SharedText(100)
    assert text.read() == ""
    for said in ("66ms", "größer", "", "x" * 100):
        if not (pid := os.fork()):
            text.write(said)
            os._exit(0)
        os.waitpid(pid, 0)
        assert text.read() == said
    with pytest.raises(ValueError, match="a text of 101 bytes, where there is room for 100"):
        text.write("x" * 101)
    half = text._place(1 - text._memory[0])
    text._memory[half : half + 50] = b"\xff" * 50  # as far as a process came that was killed while it wrote
    assert text.read() == "x" * 100


def test_the_most_targets_that_there_may_be_have_room() -> None:
    asked = Asked()
    own = {2**64 - 1 - number: str(Target.parse(f"+{1 / 3 + number}ms")) for number in range(MOST_OWN)}
    asked.keep_targets("123.4567890123456ms", own)
    assert asked.targets() == ("123.4567890123456ms", own)
    assert len(asked._targets.read()) < MOST_BYTES / 2

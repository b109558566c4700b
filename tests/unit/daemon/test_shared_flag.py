"""What the loader knows of a pause: as soon as whoever asked for it, and whatever becomes of the process that obeys."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from reinet.agents.decide.loop import ControlLoop
from reinet.daemon.config import DaemonConfig
from reinet.daemon.processes.decide import _Kept
from reinet.daemon.processes.shared_flag import SharedFlag


def kept(flag: SharedFlag, **calls: Any) -> _Kept:
    config = DaemonConfig(model="rule", cgroups=(Path("/unused"),))
    return _Kept(config, cast(ControlLoop, SimpleNamespace(**calls)), "rule", flag)


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

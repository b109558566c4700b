"""What the decision process keeps of a loop: targets that outlive it, and a file that is read while others call."""

import os
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from helpers.daemons import write_config
from helpers.loops import HEALTHY, QUIET, started
from reinet.agents.decide.baselines import Rule
from reinet.agents.decide.loop import ControlLoop
from reinet.core.target import Target
from reinet.daemon.config import DaemonConfig
from reinet.daemon.processes.asked import Asked
from reinet.daemon.processes.decide import Followed, _Kept
from reinet.daemon.reload import Reloader, stamp_of
from reinet.daemon.serve import agent_for


def keeping(asked: Asked, loop: ControlLoop, path: Path | None = None, waits: bool = False) -> _Kept:
    config = DaemonConfig(model="rule", cgroups=(Path("/unused"),))
    followed = Followed(config, "", agent_for)
    made = _Kept(loop, followed, asked)
    made.reloader = Reloader(path, config, made, followed.load, SimpleNamespace(), waits=waits)  # type: ignore[arg-type]
    made.begin(Rule(1.5))
    return made


def test_targets_are_known_before_they_are_answered_and_the_next_loop_goes_by_them() -> None:
    asked = Asked()
    shim, loop = started(Rule(1.5), 7, 8)
    keeper = keeping(asked, loop)
    assert keeper.set_target(0, "66ms") == "66ms"
    assert keeper.set_target(7, "+20ms") == "+20ms"
    assert keeper.set_target(8, "+10ms") == "+10ms"
    assert keeper.set_target(8, "")
    assert asked.targets() == ("66ms", {7: "+20ms"})

    next_loop = ControlLoop(shim, Rule(1.5), Target.parse("50ms"), clock_ns=lambda: shim.now_ns, log=QUIET)
    next_keeper = keeping(asked, next_loop)
    assert asked.targets() == ("66ms", {7: "+20ms"})
    next_loop.tick()
    assert not next_loop._flows.own_targets.any()  # a flow that has ended meanwhile costs nothing
    for _ in range(2):
        shim.feed(7, **HEALTHY)
        shim.feed(8, **HEALTHY)
        next_loop.tick()
    assert [next_loop.why(cookie).target for cookie in (7, 8)] == ["+20ms", "66ms"]  # type: ignore[union-attr]
    assert next_keeper.set_target(8, "+5ms") == "+5ms"
    assert asked.targets() == ("66ms", {7: "+20ms", 8: "+5ms"})


def test_a_target_of_a_flow_that_was_not_heard_of_again_is_kept_for_the_next_loop_too() -> None:
    asked = Asked()
    asked.keep_targets("", {9: "+20ms"})
    _, loop = started(Rule(1.5))
    keeping(asked, loop).set_target(0, "66ms")
    assert asked.targets() == ("66ms", {9: "+20ms"})


def test_a_file_that_is_read_again_takes_the_target_of_all_back_and_one_that_makes_no_sense_does_not(
    tmp_path: Path,
) -> None:
    asked = Asked()
    _, loop = started(Rule(1.5))
    path = write_config(tmp_path)
    keeper = keeping(asked, loop, path)
    keeper.set_target(0, "66ms")
    keeper.set_target(7, "+20ms")
    path.unlink()
    keeper.look()
    path.write_text("no configuration")
    keeper.look()
    assert asked.targets() == ("66ms", {7: "+20ms"})
    write_config(tmp_path, target="44ms")
    keeper.look()
    assert asked.targets() == ("", {7: "+20ms"})


def test_a_file_that_is_being_written_is_left_until_a_second_look_finds_it_the_same(tmp_path: Path) -> None:
    asked = Asked()
    _, loop = started(Rule(1.5))
    path = write_config(tmp_path, mode="shadow")
    keeper = keeping(asked, loop, path, waits=True)
    before = stamp_of(path)
    write_config(tmp_path)  # as far as an editor has come: without its last line it says enforce
    assert keeper.look() == before
    write_config(tmp_path, mode="shadow", target="77ms")
    assert keeper.look() == before
    assert keeper.look() == stamp_of(path)
    loop.tick()
    assert (loop.status().state, loop.status().target) == ("shadow", "77ms")
    write_config(tmp_path, mode="shadow", target="88ms")
    keeper.reload()  # who asks for it has written it
    loop.tick()
    assert loop.status().target == "88ms"


def test_a_file_whose_disk_hangs_holds_up_one_look_and_nothing_else(tmp_path: Path) -> None:
    _, loop = started(Rule(1.5))
    path = write_config(tmp_path)
    keeper = keeping(Asked(), loop, path)
    text = write_config(tmp_path, target="77ms").read_text()
    path.unlink()
    os.mkfifo(path)  # it is opened when somebody writes
    first = threading.Thread(target=keeper.look, daemon=True)
    first.start()
    writes = -1
    while writes < 0:
        with suppress(OSError):  # until the first look has opened it, and hangs there
            writes = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    assert keeper.look() is None
    keeper.reload()
    path.unlink()
    path.write_text(text)
    os.write(writes, text.encode())
    os.close(writes)
    first.join(60)
    assert keeper.look() == stamp_of(path)
    loop.tick()
    assert loop.status().target == "77ms"

"""The daemon's processes: what they may do, and what becomes of the others when one dies or stands still."""

import json
import os
import shutil
import signal
import socket as sockets
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from structlog.testing import capture_logs

from helpers.daemons import DEADLINE_S, Daemon, has_capped, write_config
from helpers.loops import started
from helpers.models import write_model
from helpers.places import ROOT
from helpers.waiting import wait_for
from reinet.agents.decide.baselines import FixedCap, Rule
from reinet.daemon import serve
from reinet.daemon.client import ControlClient
from reinet.daemon.config import DaemonConfig
from reinet.daemon.processes.claim import SocketClaim
from reinet.daemon.processes.controlled import Supervised
from reinet.daemon.processes.front import LoopAfar
from reinet.daemon.processes.supervisor import Supervisor
from reinet.daemon.reload import stamp_of
from reinet.daemon.serve import agent_for


def children_of(pid: int) -> list[int]:
    """The decision process and the one that answers, in this order."""
    return sorted(int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def under_way(client: ControlClient) -> str:
    return "".join(swap.under_way for swap in client.health().swaps)


@pytest.mark.parametrize(("which", "number", "called"), [(0, 9, "SIGKILL"), (1, 9, "SIGKILL"), (0, 40, "signal 40")])
def test_a_process_that_dies_is_started_anew_and_the_log_says_so(
    folder: Path, which: int, number: int, called: str
) -> None:
    daemon = Daemon(write_config(folder, log_dir=str(folder / "log")))
    daemon.wait_for(has_capped)
    before = children_of(daemon.process.pid)
    os.kill(before[which], number)
    daemon.wait_for(lambda client: not set(before) & set(children_of(daemon.process.pid)) and has_capped(client))
    code, _, log = daemon.end(signal.SIGTERM)
    assert code == 0
    (anew,) = [entry for entry in log if entry["event"] == "starting anew"]
    assert anew["why"] == f"the {['decision', 'answering'][which]} process was ended by {called}"
    assert not daemon.socket.parent.exists()


@pytest.mark.parametrize("which", [0, 1])
def test_what_is_started_anew_goes_by_what_was_in_force_and_stays_paused(folder: Path, which: int) -> None:
    daemon = Daemon(write_config(folder))
    daemon.wait_for(has_capped)
    write_config(folder, target="77ms", mode="shadow")
    daemon.wait_for(lambda client: client.health().target == "77ms")
    daemon.wait_for(lambda client: client.pause() is not None)
    time.sleep(2.5)  # the loader looks each second
    (folder / "daemon.toml").write_text("no configuration")  # what was in force last is kept, not this
    daemon.wait_for(lambda client: "not reloaded" in client.health().problem)
    before = children_of(daemon.process.pid)
    os.kill(before[which], signal.SIGKILL)
    daemon.wait_for(lambda client: not set(before) & set(children_of(daemon.process.pid)) and client.health())

    def as_before(client: ControlClient) -> bool:
        health = client.health()
        return (health.state, health.target) == ("paused", "77ms") and "not reloaded" in health.problem

    daemon.wait_for(as_before)
    code, _, log = daemon.end(signal.SIGTERM)
    assert code == 0
    assert sum(entry["event"] == "starting anew" for entry in log) == 1


def test_what_is_started_anew_measures_by_the_period_that_is_loaded(folder: Path) -> None:
    """The file named the hand rule by then, which tells of another one, and the daemon ended, amid an incident."""
    daemon = Daemon(write_config(folder, ROOT / "checkpoints" / "default"), "period")
    daemon.wait_for(lambda client: client.health().decisions)
    write_config(folder, "rule")
    daemon.wait_for(lambda client: "rule:1.5" in under_way(client))
    time.sleep(2.5)  # the loader looks each second
    before = children_of(daemon.process.pid)
    os.kill(before[0], signal.SIGKILL)
    daemon.wait_for(lambda client: not set(before) & set(children_of(daemon.process.pid)) and has_capped(client))
    daemon.wait_for(lambda client: client.health().model == "rule:1.5")
    write_config(folder, ROOT / "checkpoints" / "per-rtt")
    daemon.wait_for(lambda client: "flows are measured by others (every 5 ms)" in client.health().problem)
    write_config(folder, ROOT / "checkpoints" / "default")
    daemon.wait_for(lambda client: client.health().ok and "checkpoints/default" in under_way(client))
    code, out, _ = daemon.end(signal.SIGTERM)
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("measured")] == ["measured every 5 ms"] * 2


def test_hundreds_of_policies_are_looked_after_as_one_is(folder: Path) -> None:
    policies = "".join(f'[[policy]]\nname = "{number:064}"\nlocal_ports = [{number + 1}]\n' for number in range(200))

    def write(target: str) -> Path:
        path = write_config(folder, target=target)
        path.write_text(path.read_text() + policies)
        return path

    daemon = Daemon(write("55ms"))
    daemon.wait_for(has_capped)
    before = children_of(daemon.process.pid)
    time.sleep(2.5)  # the loader looks each second
    write("66ms")  # which is taken up at the loader's word
    daemon.wait_for(lambda client: client.health().target == "66ms")
    assert children_of(daemon.process.pid) == before
    code, _, log = daemon.end(signal.SIGTERM)
    assert code == 0
    assert "starting anew" not in [entry["event"] for entry in log]
    of = {entry["event"]: len(json.dumps(entry)) for entry in log}
    assert max(of[event] for event in ("serving", "reloaded", "policies")) < 2000, "a journal's lines end at 48 KB"


@pytest.mark.parametrize("which", [0, 1])
def test_a_pause_and_its_end_hold_from_when_they_are_answered_whichever_process_is_killed(
    folder: Path, which: int
) -> None:
    daemon = Daemon(write_config(folder))
    daemon.wait_for(has_capped)

    def killed_after(call: Callable[[ControlClient], object], state: str) -> None:
        before = children_of(daemon.process.pid)
        with ControlClient(daemon.socket) as client:
            call(client)
            os.kill(before[which], signal.SIGKILL)
        daemon.wait_for(lambda client: not set(before) & set(children_of(daemon.process.pid)) and client.health().ok)
        with ControlClient(daemon.socket) as client:
            assert client.health().state == state

    killed_after(lambda client: client.pause(), "paused")
    killed_after(lambda client: client.resume(), "enforcing")
    daemon.wait_for(has_capped)
    assert daemon.end(signal.SIGTERM)[0] == 0


@pytest.mark.parametrize("which", [0, 1])
def test_a_target_that_was_set_outlives_a_process_and_not_another_file(folder: Path, which: int) -> None:
    daemon = Daemon(write_config(folder, target="55ms"))
    daemon.wait_for(has_capped)
    daemon.wait_for(lambda client: client.set_target(0, "66ms"))
    time.sleep(2.5)  # the loader looks each second
    before = children_of(daemon.process.pid)
    os.kill(before[which], signal.SIGKILL)
    daemon.wait_for(lambda client: not set(before) & set(children_of(daemon.process.pid)) and has_capped(client))
    daemon.wait_for(lambda client: client.health().target == "66ms")
    write_config(folder, target="44ms")
    daemon.wait_for(lambda client: client.health().target == "44ms")
    assert daemon.end(signal.SIGTERM)[0] == 0


@pytest.mark.parametrize("which", [0, 1])
def test_targets_hold_from_when_they_are_answered_whichever_process_is_killed(folder: Path, which: int) -> None:
    daemon = Daemon(write_config(folder, target="55ms"))
    daemon.wait_for(has_capped)
    before = children_of(daemon.process.pid)
    with ControlClient(daemon.socket) as client:
        assert client.set_target(7, "+21ms") == "+21ms"
        assert client.set_target(0, "66ms") == "66ms"
        os.kill(before[which], signal.SIGKILL)
    daemon.wait_for(lambda client: not set(before) & set(children_of(daemon.process.pid)) and has_capped(client))
    with ControlClient(daemon.socket) as client:
        assert (client.health().target, client.why(7).target) == ("66ms", "+21ms")
    write_config(folder, target="44ms")
    daemon.wait_for(lambda client: client.health().target == "44ms")
    assert daemon.end(signal.SIGTERM)[0] == 0


def test_a_model_that_goes_with_its_process_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, loop = started(Rule(1.5))
    config = DaemonConfig(model="rule", cgroups=(Path("/unused"),))
    with SocketClaim(folder / "control.sock") as claim:
        supervisor = Supervisor(config, None, claim, agent_for, serve.open_shim, serve.load_kernel)
        supervisor.called = "rule:1.5"
        supervisor.loop = cast(Supervised, SimpleNamespace(look=lambda: True, status=loop.status))
        monkeypatch.setattr(supervisor, "start", lambda _pause: None)  # what the file names decides again
        supervisor.look()
        with capture_logs() as before:
            assert supervisor.restart("died", lambda _seconds: False)
        loop.swap(FixedCap(20), share=1.0)
        loop.tick()
        supervisor.look()
        with capture_logs() as after:
            assert supervisor.restart("died", lambda _seconds: False)
    told = "the model before went with its process"
    assert told not in [entry["event"] for entry in before]
    (entry,) = [entry for entry in after if entry["event"] == told]
    assert (entry["model"], entry["decides"]) == ("fixed:20", "rule:1.5")


def test_a_file_that_changed_after_it_was_put_in_force_is_not_what_a_process_is_started_anew_with(folder: Path) -> None:
    """It may name a model that is not there: the daemon ended when a process died then."""
    path = write_config(folder)
    in_force = stamp_of(path)
    write_config(folder, model=folder / "gone")
    _, loop = started(Rule(1.5))
    with SocketClaim(folder / "control.sock") as claim:
        config = DaemonConfig(model="rule", cgroups=(Path("/unused"),))
        supervisor = Supervisor(config, path, claim, agent_for, serve.open_shim, serve.load_kernel)
        supervisor._stamp = None
        supervisor.loop = cast(Supervised, SimpleNamespace(look=lambda: in_force, status=loop.status))
        supervisor.look()
        assert supervisor._config.model == "rule"
        supervisor.loop = cast(Supervised, SimpleNamespace(look=lambda: stamp_of(path), status=loop.status))
        supervisor.look()
        assert supervisor._config.model == str(folder / "gone"), "it is in force by now"


def test_a_loop_that_never_answered_takes_nothing_back(folder: Path) -> None:
    config = DaemonConfig(model="rule", cgroups=(Path("/unused"),))
    with SocketClaim(folder / "control.sock") as claim:
        supervisor = Supervisor(config, None, claim, agent_for, serve.open_shim, serve.load_kernel)
    _, loop = started(Rule(1.5))
    supervisor.loop = cast(Supervised, SimpleNamespace(look=lambda: True, status=loop.status))
    supervisor.look()
    known = supervisor.status
    assert known is not None
    ours, theirs = sockets.socketpair()
    theirs.close()  # the process that was started anew dies before it has said anything
    afar = LoopAfar(ours, Supervised)
    supervisor.loop = cast(Supervised, SimpleNamespace(look=lambda: True, status=afar.status))
    supervisor.look()
    assert supervisor.status is known


def test_a_daemon_whose_decision_process_is_stopped_ends_all_the_same_and_says_why(folder: Path) -> None:
    daemon = Daemon(write_config(folder))
    daemon.wait_for(has_capped)
    os.kill(children_of(daemon.process.pid)[0], signal.SIGSTOP)
    daemon.process.send_signal(signal.SIGTERM)
    _, said = daemon.process.communicate(timeout=DEADLINE_S)
    assert daemon.process.returncode == 1
    assert "Traceback" not in said
    assert "the decision loop hung and was killed; every cap is lifted" in said


@pytest.mark.parametrize(("log_dir", "lost"), [("log", ": the last of curves and recordings may be lost"), (None, "")])
def test_a_daemon_whose_answering_process_is_stopped_ends_in_order_and_says_what_is_lost(
    folder: Path, log_dir: str | None, lost: str
) -> None:
    daemon = Daemon(write_config(folder, **({"log_dir": str(folder / log_dir)} if log_dir else {})))
    daemon.wait_for(has_capped)
    os.kill(children_of(daemon.process.pid)[1], signal.SIGSTOP)
    code, _, log = daemon.end(signal.SIGTERM)
    assert code == 0
    assert [entry["event"] for entry in log if entry["level"] == "warning"] == [
        f"the answering process was killed at the end{lost}"
    ]


def test_a_slow_start_leaves_no_curve_without_a_folder_it_may_open(folder: Path) -> None:
    """Sockets are made under a narrow umask, which is the whole process' own, and being root brings it no right."""
    config = write_config(folder, log_dir=str(folder / "log"), metrics=f"unix:{folder}/metrics/metrics.sock")
    daemon = Daemon(config, "umask")
    daemon.wait_for(has_capped)
    wait_for(lambda: list(folder.glob("log/serve-*/flow-50/events*")))
    code, _, log = daemon.end(signal.SIGTERM)
    assert code == 0
    assert not [entry for entry in log if entry["event"] == "event log stopped"]


def test_what_decides_and_what_answers_have_no_capability(folder: Path) -> None:
    daemon = Daemon(write_config(folder, write_model(folder)))
    daemon.wait_for(has_capped)
    for pid in children_of(daemon.process.pid):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        shown = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        assert {shown[name] for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {"0" * 16}
        assert (shown["NoNewPrivs"], shown["Seccomp"]) == ("1", "2")
        # every thread has credentials and filters of its own
        for thread in Path(f"/proc/{pid}/task").iterdir():
            status = (thread / "status").read_text()
            assert "CapEff:\t" + "0" * 16 in status
            assert "Seccomp:\t2" in status
    deciding, answering = (Path(f"/proc/{pid}/maps").read_text() for pid in children_of(daemon.process.pid))
    assert ("onnxruntime" in deciding, "cygrpc" in deciding) == (True, False)
    assert ("onnxruntime" in answering, "cygrpc" in answering) == (False, True)
    assert daemon.end(signal.SIGTERM)[0] == 0


def test_a_decision_process_that_is_stopped_does_not_stop_the_answers(folder: Path) -> None:
    daemon = Daemon(write_config(folder, metrics=f"unix:{folder / 'metrics.sock'}"))
    daemon.wait_for(has_capped)
    deciding, _ = children_of(daemon.process.pid)
    os.kill(deciding, signal.SIGSTOP)
    daemon.wait_for(lambda client: "did not answer" in client.health().problem)
    with sockets.socket(sockets.AF_UNIX) as raw:
        raw.connect(str(folder / "metrics.sock"))
        raw.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        with raw.makefile() as reply:
            assert "\nreinet_healthy 0.0\n" in reply.read()
    os.kill(deciding, signal.SIGCONT)
    daemon.wait_for(lambda client: client.health().ok)
    assert daemon.end(signal.SIGTERM)[0] == 0


def test_an_answering_process_that_is_stopped_at_the_end_leaves_none_of_its_sockets(folder: Path) -> None:
    daemon = Daemon(write_config(folder, metrics=f"unix:{folder / 'run' / 'metrics.sock'}"))
    daemon.wait_for(has_capped)
    _, answering = children_of(daemon.process.pid)
    os.kill(answering, signal.SIGSTOP)
    assert daemon.end(signal.SIGTERM)[0] == 0
    assert not daemon.socket.parent.exists()


def test_sockets_whose_folders_were_removed_are_there_again_once_a_process_was_started_anew(folder: Path) -> None:
    """The daemon ended then."""
    elsewhere = {"processes": str(folder / "programs" / "socket"), "metrics": f"unix:{folder}/metrics/socket"}
    daemon = Daemon(write_config(folder, **elsewhere))
    daemon.wait_for(has_capped)
    for name in ("run", "programs", "metrics"):
        shutil.rmtree(folder / name)
    _, answering = children_of(daemon.process.pid)
    os.kill(answering, signal.SIGKILL)
    daemon.wait_for(has_capped)
    assert (folder / "programs" / "socket").is_socket()
    assert (folder / "metrics" / "socket").is_socket()
    assert daemon.end(signal.SIGTERM)[0] == 0
    assert {path.name for path in folder.iterdir()} == {"daemon.toml"}


def test_a_killed_loader_takes_both_along(folder: Path) -> None:
    daemon = Daemon(write_config(folder))
    daemon.wait_for(has_capped)
    left = children_of(daemon.process.pid)
    daemon.end(signal.SIGKILL)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left), DEADLINE_S)


def test_a_configuration_whose_disk_hangs_costs_nothing(folder: Path) -> None:
    path = write_config(folder)
    daemon = Daemon(path)
    daemon.wait_for(has_capped)
    path.unlink()
    os.mkfifo(path)  # to open it hangs until somebody writes
    time.sleep(8)  # more looks than there are threads to answer the loader
    daemon.wait_for(lambda client: client.health().ok)
    assert daemon.end(signal.SIGTERM)[0] == 0


def test_a_model_whose_folder_is_removed_decides_on_and_is_missed_only_by_a_process_started_anew(folder: Path) -> None:
    model = folder / "model"
    shutil.copytree(ROOT / "checkpoints" / "small", model)
    daemon = Daemon(write_config(folder, model))
    daemon.wait_for(lambda client: client.health().decisions)
    shutil.rmtree(model)
    with ControlClient(daemon.socket) as client:
        decided = client.health().decisions
    daemon.wait_for(lambda client: client.health().decisions > decided and client.health().ok)
    os.kill(children_of(daemon.process.pid)[0], signal.SIGKILL)
    daemon.process.wait(DEADLINE_S)
    code, _, log = daemon.end()
    assert code == 1
    (said,) = [entry for entry in log if entry["event"] == "starting anew"]
    assert said["caps"] == "lifted"


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may give a folder away")
def test_what_lies_in_another_users_closed_folder_is_told_with_what_to_do(folder: Path) -> None:
    home = folder / "home"
    shutil.copytree(ROOT / "checkpoints" / "small", home / "model")
    path = write_config(home, home / "model", socket=str(folder / "control.sock"))
    os.chown(home, 65534, 65534)
    home.chmod(0o700)
    refused = Daemon(path)
    said = refused.process.communicate(timeout=DEADLINE_S)[1]
    assert f"error: agent '{home / 'model'}': Permission denied; open it to whoever reads it" in said
    assert "Traceback" not in said

    write_config(home, "rule", socket=str(folder / "control.sock"))
    daemon = Daemon(path)
    daemon.socket = folder / "control.sock"
    daemon.wait_for(has_capped)
    time.sleep(2.5)  # the loader looks each second
    code, _, log = daemon.end(signal.SIGTERM)
    assert code == 0
    (unseen,) = [entry for entry in log if entry["event"] == "changes of the configuration are not seen"]
    assert unseen["file"] == str(path)
    assert "without root's privilege" in unseen["why"]

"""The daemon as a process, on a shim in memory: start, stop, refusals, crashes, and what is left afterwards."""

import fcntl
import gc
import hashlib
import json
import os
import signal
import socket as sockets
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from typer.testing import CliRunner

from helpers.daemons import DEADLINE_S, Daemon, agent_of, has_capped, write_config
from helpers.loops import started
from helpers.models import FEATURES, write_model
from reinet.agents.decide.baselines import FixedCap, Rule
from reinet.agents.decide.loop import ControlLoop
from reinet.cli import ctl
from reinet.cli.main import app
from reinet.core import schema_hash
from reinet.core.errors import ConfigError, DaemonError, ModelError, ShimError
from reinet.core.records import FLOW_STATS_DTYPE
from reinet.core.target import Target
from reinet.daemon import serve as daemon_serve
from reinet.daemon.client import ControlClient
from reinet.daemon.config import DaemonConfig
from reinet.daemon.policies import PolicyConfig
from reinet.daemon.processes.supervisor import MOST_RESTARTS, Supervisor
from reinet.kshim.fake import FakeShim
from reinet.kshim.probe import Feature


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal_and_leaves_nothing(folder: Path, number: signal.Signals) -> None:
    daemon = Daemon(write_config(folder, write_model(folder), log_dir=str(folder / "log"), target="2.5x"))

    def serves(client: ControlClient) -> bool:
        health = client.health()
        assert health.ok
        assert schema_hash(FEATURES, "bdp") in health.model
        assert health.target == "2.5x"
        flows = [(flow.cookie, flow.cap_pkts, flow.reason, flow.target_us) for flow in client.flows().flows]
        assert flows == [(7, 30, "", 50_000)]  # of a minimum RTT of 20 ms
        return True

    daemon.wait_for(serves)
    code, out, log = daemon.end(number)
    assert code == 0
    first, rest = out.split("\n", 1)
    assert json.loads(first) == {"cap_at_close_pkts": 0}  # lifted by the loop, before the shim went
    assert json.loads(rest)["decisions"] > 0
    untrained, *rest = log  # the model is Cubic's
    assert untrained["untrained"] == ["reno", "bbr"]
    assert [entry["event"] for entry in rest] == ["serving", "stopping", "stopped"], rest
    assert rest[0]["target"] == "2.5x"
    assert not daemon.socket.parent.exists()
    assert list((folder / "log").rglob("flow-7/events.out.tfevents*"))


def test_sighup_and_a_changed_file_take_the_configuration_up_again(folder: Path) -> None:
    daemon = Daemon(write_config(folder, mode="shadow"))
    daemon.wait_for(lambda client: client.health().state == "shadow" and not has_capped(client))
    path = folder / "daemon.toml"
    good = path.read_text()
    path.write_text(good.replace("shadow", "shade"))
    os.kill(daemon.process.pid, signal.SIGHUP)
    daemon.wait_for(lambda client: "the old one stays in force" in client.health().problem)
    path.write_text(good.replace("shadow", "enforce"))
    daemon.wait_for(lambda client: client.health().state == "enforcing" and has_capped(client))
    code, _, log = daemon.end(signal.SIGTERM)
    assert code == 0
    events = [entry["event"] for entry in log]
    assert events.count("reloaded") == 1
    assert events.count("not reloaded, the old configuration stays in force") >= 1


def test_pause_from_the_command_line(folder: Path) -> None:
    daemon = Daemon(write_config(folder))
    daemon.wait_for(has_capped)
    run = CliRunner()
    where = ["--socket", str(daemon.socket), "--json", "-"]
    assert json.loads(run.invoke(ctl.app, ["health", *where]).stdout)["state"] == "enforcing"
    assert json.loads(run.invoke(ctl.app, ["pause", *where]).stdout) == {"released": 1}
    (row,) = json.loads(run.invoke(ctl.app, ["flows", *where]).stdout)["rows"]
    assert (row["cap_pkts"], row["rtt_mean_ms"], row["delivery_rate_mbps"]) == (0, 40.0, pytest.approx(11.584))
    assert "paused" in row["reason"]
    assert json.loads(run.invoke(ctl.app, ["health", *where]).stdout)["state"] == "paused"
    assert json.loads(run.invoke(ctl.app, ["resume", *where]).stdout) == {"resumed": True}
    daemon.wait_for(has_capped)
    assert run.invoke(ctl.app, ["flows", "--socket", str(daemon.socket)]).exit_code == 0
    daemon.end(signal.SIGTERM)
    gone = run.invoke(ctl.app, ["health", *where])
    assert isinstance(gone.exception, DaemonError)
    assert "no daemon is listening" in str(gone.exception)


def test_a_hanging_model_does_not_keep_it_from_ending(folder: Path) -> None:
    daemon = Daemon(write_config(folder), fault="hang")
    daemon.wait_for(lambda client: "no tick completed" in client.health().problem)
    health = CliRunner().invoke(ctl.app, ["health", "--socket", str(daemon.socket)])
    assert health.exit_code == 1
    code, _, log = daemon.end(signal.SIGTERM)
    assert code == 1
    assert any("hangs" in entry["event"] for entry in log)
    assert not daemon.socket.exists()


def test_a_broken_shim_ends_it_with_caps_lifted(folder: Path) -> None:
    daemon = Daemon(write_config(folder), fault="shim")
    out, err = daemon.process.communicate(timeout=DEADLINE_S)
    assert daemon.process.returncode == 1
    log = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    starts = 1 + MOST_RESTARTS
    assert [json.loads(line) for line in out.splitlines()] == [{"cap_at_close_pkts": 0}] * starts
    assert sum("ring buffer torn" in entry.get("exception", "") for entry in log) == starts
    events = [entry["event"] for entry in log]  # of two processes, each of which writes its own in its own time
    assert events.count("starting anew") == MOST_RESTARTS
    # On a slow host the shim breaks before the process that answers is there: then the last start has failed.
    assert events.count("giving up") + err.count("it cannot be started anew") == 1
    assert not daemon.socket.parent.exists()


def test_a_second_daemon_is_refused_and_a_killed_one_replaced(folder: Path) -> None:
    config = write_config(folder)
    first = Daemon(config)
    first.wait_for(has_capped)
    second = Daemon(config)
    _, err = second.process.communicate(timeout=DEADLINE_S)
    assert second.process.returncode == 1
    assert "another daemon is listening there" in err
    first.wait_for(has_capped)  # unharmed
    first.end(signal.SIGKILL)
    assert first.socket.exists()
    third = Daemon(config)
    third.wait_for(has_capped)
    assert third.end(signal.SIGTERM)[0] == 0
    assert list(third.socket.parent.iterdir()) == []  # a folder that was there before is not ours to remove


def test_a_cgroup_that_goes_away_shows(folder: Path) -> None:
    (folder / "cgroup").mkdir()
    daemon = Daemon(write_config(folder, cgroups=[str(folder / "cgroup")]))
    daemon.wait_for(has_capped)
    (folder / "cgroup").rmdir()
    daemon.wait_for(lambda client: f"{folder / 'cgroup'} was removed" in client.health().problem)
    (folder / "cgroup").mkdir()
    daemon.wait_for(lambda client: not client.health().problem)
    code, _, log = daemon.end(signal.SIGTERM)
    assert code == 0
    events = [entry["event"] for entry in log]
    assert (events.count("cgroups lost"), events.count("cgroups followed")) == (1, 2)


def test_a_daemon_is_refused_what_another_serves_and_says_by_whom(folder: Path) -> None:
    (folder / "cgroup").mkdir()
    first = Daemon(write_config(folder, cgroups=[str(folder / "cgroup")]))
    first.wait_for(has_capped)
    (folder / "second").mkdir()
    second = Daemon(write_config(folder / "second", cgroups=[str(folder / "cgroup")]))
    assert second.process.wait(DEADLINE_S) == 1
    said = second.process.communicate()[1]
    assert f"another daemon (pid {first.process.pid}) serves it" in said
    first.wait_for(has_capped)
    assert first.end(signal.SIGTERM)[0] == 0


def test_a_closed_log_costs_no_caps(folder: Path) -> None:
    daemon = Daemon(write_config(folder))
    assert daemon.process.stderr is not None
    daemon.process.stderr.close()
    daemon.wait_for(has_capped)
    with ControlClient(daemon.socket) as client:
        client.pause()
        client.resume()
    daemon.wait_for(has_capped)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.stdout is not None
    daemon.process.stdout.read()
    daemon.process.stdout.close()
    assert daemon.process.wait(DEADLINE_S) == 0


def test_a_log_that_nobody_reads_costs_no_caps_and_no_end(folder: Path) -> None:
    daemon = Daemon(write_config(folder))
    assert daemon.process.stderr is not None
    fcntl.fcntl(daemon.process.stderr, fcntl.F_SETPIPE_SZ, 4096)  # a few lines fill it
    daemon.wait_for(has_capped)
    with ControlClient(daemon.socket) as client:
        for _ in range(50):
            client.pause()
            client.resume()
    daemon.wait_for(has_capped)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(DEADLINE_S) == 0


def test_the_service_manager_hears_of_start_ticks_and_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify"))
        manager.settimeout(DEADLINE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
        daemon = Daemon(write_config(folder), fault="hang")
        assert manager.recv(1000).startswith(b"READY=1\nSTATUS=serving rule")
        assert manager.recv(1000) == b"WATCHDOG=1"
        daemon.wait_for(lambda client: "no tick completed" in client.health().problem)
        manager.settimeout(3 * daemon_serve.ASK_S)
        silent = False
        for _ in range(1000):  # some signs of life may still be there
            try:
                assert manager.recv(1000) == b"WATCHDOG=1"
            except TimeoutError:
                silent = True
                break
        assert silent
        daemon.end(signal.SIGTERM)
        assert manager.recv(1000) == b"STOPPING=1"


def test_the_service_manager_is_told_what_decides_now(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify"))
        manager.settimeout(DEADLINE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
        daemon = Daemon(write_config(folder))

        def told() -> str:
            while (said := manager.recv(1000)) == b"WATCHDOG=1":
                pass
            return said.decode()

        assert told() == "READY=1\nSTATUS=serving rule:1.5, target +30ms"
        daemon.wait_for(lambda client: client.set_target(0, "77ms"))
        assert told() == "STATUS=serving rule:1.5, target 77ms"
        daemon.wait_for(lambda client: client.pause() is not None)
        assert told() == "STATUS=serving rule:1.5, target 77ms, paused"
        assert daemon.end(signal.SIGTERM)[0] == 0


def test_the_service_manager_is_told_of_a_model_that_was_swapped_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, loop = started(Rule(1.5))
    loop.swap(FixedCap(20), share=1.0)
    loop.tick()
    supervisor = cast(Supervisor, SimpleNamespace(status=loop.status(), called="rule:1.5"))
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify"))
        manager.settimeout(DEADLINE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
        line = "STATUS=serving fixed:20, target 50ms"
        assert daemon_serve._tell(supervisor, "") == manager.recv(1000).decode() == line
        assert daemon_serve._tell(supervisor, line) == line
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):  # nothing is said twice
            manager.recv(1000)


def test_metrics_are_served_where_the_configuration_says(folder: Path) -> None:
    path = folder / "metrics.sock"
    daemon = Daemon(write_config(folder, metrics=f"unix:{path}"))
    daemon.wait_for(has_capped)
    with sockets.socket(sockets.AF_UNIX) as raw:
        raw.connect(str(path))
        raw.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        with raw.makefile() as reply:
            assert "reinet_caps_in_force 1.0" in reply.read()
    code, _, log = daemon.end(signal.SIGTERM)
    assert code == 0
    assert log[0]["metrics"] == f"unix:{path}"
    assert not path.exists()


def test_a_model_is_put_in_by_hand_unless_another_one_is_pinned(folder: Path) -> None:
    model = write_model(folder)
    daemon = Daemon(write_config(folder, "fixed:10"))
    daemon.wait_for(has_capped)
    arguments = ["swap", str(model), "--socket", str(daemon.socket), "--json", "-"]
    done = CliRunner().invoke(ctl.app, arguments)
    assert (done.exit_code, json.loads(done.stdout)["refused"]) == (0, 0)
    with ControlClient(daemon.socket) as client, pytest.raises(DaemonError, match="did you mean 'rule'"):
        client.swap("rulee", "")
    code, _, log = daemon.end(signal.SIGTERM)
    assert code == 0
    assert "swap begins" in [entry["event"] for entry in log]
    digest = hashlib.sha256((model / "manifest.json").read_bytes()).hexdigest()
    pinned = Daemon(write_config(folder, model, model_sha256=digest))
    pinned.wait_for(has_capped)
    (folder / "other").mkdir()
    other = write_model(folder / "other", actions_bias=0.5)
    with ControlClient(pinned.socket) as client, pytest.raises(DaemonError, match=f"but {digest} is pinned"):
        client.swap(str(other), "")
    assert pinned.end(signal.SIGTERM)[0] == 0


def test_a_model_with_another_schema_is_refused(folder: Path) -> None:
    foreign = write_model(folder, hash=hashlib.sha256(b"other").hexdigest())
    config = DaemonConfig(model=str(foreign), cgroups=(Path("/x"),))
    with pytest.raises(ModelError, match="schema hash"):
        agent_of(config)


def test_a_model_that_was_changed_is_refused(folder: Path) -> None:
    model = write_model(folder)
    (model / "policy.onnx").write_bytes((model / "policy.onnx").read_bytes() + b"\0")
    with pytest.raises(ModelError, match="changed after export"):
        agent_of(DaemonConfig(model=str(model), cgroups=(Path("/x"),)))


def test_only_the_pinned_model_is_served(folder: Path) -> None:
    model = write_model(folder)
    digest = hashlib.sha256((model / "manifest.json").read_bytes()).hexdigest()
    config = DaemonConfig(model=str(model), model_sha256=digest, cgroups=(Path("/x"),))
    assert agent_of(config).called
    (model / "policy.onnx").unlink()
    write_model(folder, actions_bias=0.5)  # whole and sound, but another one
    with pytest.raises(ModelError, match=f"but {digest} is pinned; restore the pinned model"):
        agent_of(config)
    with pytest.raises(ConfigError, match="only a model folder has a manifest"):
        agent_of(config.model_copy(update={"model": "rule"}))


def test_a_check_says_what_to_pin_and_looks_at_the_model_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(daemon_serve, "features", dict)
    monkeypatch.setattr("reinet.daemon.cgroups.check", lambda names: None)
    model = write_model(folder)
    config = DaemonConfig(model=str(model), cgroups=(folder,))
    found = daemon_serve.check(config)
    assert found.model_sha256 == hashlib.sha256((model / "manifest.json").read_bytes()).hexdigest()
    assert schema_hash(FEATURES, "bdp") in found.model
    (model / "policy.onnx").write_bytes(b"")
    with pytest.raises(ModelError, match="changed after export"):
        daemon_serve.check(config)


@pytest.mark.parametrize("key", ["log_dir", "record.folder"])
def test_a_check_refuses_a_folder_that_cannot_be_made(tmp_path: Path, key: str) -> None:
    """It said that the daemon would serve, which then refused to start."""
    (tmp_path / "file").touch()
    config = tmp_path / "daemon.toml"
    config.write_text(f'[daemon]\nmodel = "rule"\ncgroups = ["/x"]\n{key} = "{tmp_path}/file/state"\n')
    with pytest.raises(ConfigError, match=rf"daemon\.{key} = .*/file/state: .*/file is no folder; name another"):
        raise CliRunner().invoke(app, ["serve", str(config), "--check"]).exception or AssertionError


def test_a_check_refuses_what_the_daemon_without_roots_rights_cannot_use(tmp_path: Path) -> None:
    """It said that the daemon would serve, which then refused to start."""
    config = tmp_path / "daemon.toml"
    start = f'[daemon]\nmodel = "rule"\ncgroups = ["/x"]\nrecord.folder = "{tmp_path}/flows"\n'
    config.write_text(f'{start}record.key_file = "{tmp_path}/key"\n')
    with pytest.raises(ConfigError, match=r"daemon\.record\.key_file: .*/key: No such file"):
        raise CliRunner().invoke(app, ["serve", str(config), "--check"]).exception or AssertionError
    if os.geteuid() == 0:
        (tmp_path / "log").mkdir()
        os.chown(tmp_path / "log", 65534, -1)
        config.write_text(f'{start}log_dir = "{tmp_path}/log"\n')
        with pytest.raises(ConfigError, match=r"daemon\.log_dir = .*: this user may not write into .*/log"):
            raise CliRunner().invoke(app, ["serve", str(config), "--check"]).exception or AssertionError


def test_models_that_do_not_exist_or_need_a_simulator_are_refused() -> None:
    for name, message in [("rulee", "did you mean 'rule'"), ("clairvoyant:10", "only the simulator knows")]:
        with pytest.raises(ConfigError, match=message):
            agent_of(DaemonConfig(model=name, cgroups=(Path("/x"),)))


def test_the_ceiling_reaches_the_model(folder: Path) -> None:
    config = DaemonConfig(model=str(write_model(folder)), cgroups=(Path("/x"),), ceiling_pkts=20)
    agent = agent_of(config)
    ControlLoop(FakeShim(), agent, Target.parse("50ms"), ceiling_pkts=config.ceiling_pkts)
    stats = np.zeros(1, FLOW_STATS_DTYPE)
    states = np.zeros((1, agent.view.bank(1).feature_set.state_size), np.float32)
    assert agent.decide(stats, states, np.array([500], np.float32)).tolist() == [20]


def test_a_host_that_cannot_serve_is_told_all_that_it_lacks(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:

    monkeypatch.setattr(
        daemon_serve,
        "features",
        lambda: {
            "privileges": Feature(False, "no", "be root"),
            "btf": Feature(True, ""),
            "x": Feature(False, "n", "c"),
        },
    )
    config = DaemonConfig(model="rule", cgroups=(folder,), socket=folder / "s" / "control.sock")
    with pytest.raises(ShimError, match="privileges: no; cure: be root; x: n; cure: c"):
        daemon_serve.serve(config)
    assert list(folder.iterdir()) == []


def test_folders_that_are_no_cgroups_are_refused(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(daemon_serve, "features", dict)

    def refusal(path: Path) -> str:
        with pytest.raises(ConfigError) as caught:
            daemon_serve.serve(DaemonConfig(model="rule", cgroups=(path,), socket=folder / "s" / "control.sock"))
        return str(caught.value)

    assert "does not exist; make it with mkdir" in refusal(folder / "absent")
    plain = folder / "plain"
    plain.mkdir()
    assert "is not a cgroup" in refusal(plain)
    (plain / "cgroup.procs").touch()
    assert "version 1" in refusal(plain)
    assert not (folder / "s").exists()


def test_signal_handlers_are_put_back(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(daemon_serve, "features", dict)
    before = [signal.getsignal(number) for number in daemon_serve.STOP_SIGNALS]
    gc.collect()  # what earlier tests left is not to go in the midst of this one
    open_files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError):
        daemon_serve.serve(DaemonConfig(model="rule", cgroups=(folder / "absent",), socket=folder / "c"))
    assert [signal.getsignal(number) for number in daemon_serve.STOP_SIGNALS] == before
    assert len(os.listdir("/proc/self/fd")) <= open_files


@pytest.mark.parametrize(("policy_model", "why"), [
    ("/none/such", "/none/such"),
    ("other", "refused, it decides by periods of its own"),
])  # fmt: skip
def test_a_check_looks_at_the_policies_models_too(
    monkeypatch: pytest.MonkeyPatch, folder: Path, policy_model: str, why: str
) -> None:
    monkeypatch.setattr(daemon_serve, "features", dict)
    monkeypatch.setattr("reinet.daemon.cgroups.check", lambda names: None)
    model = write_model(folder)
    (folder / "other").mkdir()
    other = write_model(folder / "other")
    manifest = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps(manifest | {"period": {"min_ms": 5, "packet_timed": False}}))
    named = str(other) if policy_model == "other" else policy_model
    config = DaemonConfig(model=str(model), cgroups=(folder,), policies=(PolicyConfig(name="web", model=str(model)),))
    assert daemon_serve.check(config).model
    with pytest.raises((ModelError, ConfigError), match=why):
        daemon_serve.check(config.model_copy(update={"policies": (PolicyConfig(name="web", model=named),)}))

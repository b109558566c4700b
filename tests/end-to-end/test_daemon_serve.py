"""The daemon as a process, on a shim in memory: start, stop, refusals, crashes, and what is left afterwards."""

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import socket as sockets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from reinet.agents.model.artifact import INPUT_NAME, OUTPUT_NAME, PINNED_FILES, Manifest, write_artifact
from reinet.cli import ctl
from reinet.core import FEATURE_SETS, Normaliser, schema_hash
from reinet.core.errors import ConfigError, DaemonError, ModelError, ShimError
from reinet.core.records import FLOW_STATS_DTYPE
from reinet.daemon import serve as daemon_serve
from reinet.daemon.client import ControlClient
from reinet.daemon.config import DaemonConfig
from reinet.kshim.probe import Feature

FEATURES = "deepcc-5x20"
DEADLINE_S = 60.0
"""Only a test that fails takes so long."""

SCRIPT = """
import json, os, sys, threading, time
from pathlib import Path

from reinet.cli import serve as command
from reinet.core.errors import ReinetError
from reinet.daemon import serve
from reinet.kshim.fake import FakeShim

fault = sys.argv[2]

class LiveShim(FakeShim):
    '''One flow with a record every 20 ms.'''
    def __init__(self):
        super().__init__(time.monotonic_ns())
        self.open_flow(7)
        self.polls = 0
    def poll(self, timeout_ms):
        time.sleep(0.02)
        self.now_ns = time.monotonic_ns()
        self.polls += 1
        if fault == "shim" and self.polls > 5:
            raise OSError(5, "ring buffer torn")
        self.feed(7, rtt_mean_us=40000, rtt_least_us=35000, rtt_samples=20, min_rtt_us=20000, cwnd_pkts=60,
                  mss_bytes=1448, delivery_rate_bytes_per_s=1448000, period_ns=40000000)
        return super().poll(timeout_ms)
    def close(self):
        self.now_ns = time.monotonic_ns()
        print(json.dumps({"cap_at_close_pkts": self.cap_pkts(7)}), flush=True)
        super().close()

serve.features = dict
serve._check_cgroup = lambda cgroup: None
serve.open_kernel_shim = lambda config, period: LiveShim()
if fault == "hang":
    real = serve.load_agent
    def load_agent(config):
        agent = real(config)
        decide, calls = agent.decide, []
        def hang(*args):
            calls.append(1)
            if len(calls) > 20:
                threading.Event().wait()
            return decide(*args)
        agent.decide = hang
        return agent
    serve.load_agent = load_agent
try:
    command.serve(Path(sys.argv[1]), check=False, json_destination="-")
except ReinetError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(1)
heavy = {name.partition(".")[0] for name in sys.modules} & {"torch", "ray", "tensorflow", "matplotlib", "gymnasium"}
sys.exit(f"imported {sorted(heavy)}" if heavy else 0)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="reinet-test-") as name:
        yield Path(name)


def write_model(folder: Path, actions_bias: float = 0.0, **schema: str) -> Path:
    """A model whose action is always tanh(actions_bias), head bdp."""
    size = FEATURE_SETS[FEATURES].state_size
    graph = helper.make_graph(
        [helper.make_node("Gemm", [INPUT_NAME, "w", "b"], ["sum"]), helper.make_node("Tanh", ["sum"], [OUTPUT_NAME])],
        "actor",
        [helper.make_tensor_value_info(INPUT_NAME, TensorProto.FLOAT, ["batch", size])],
        [helper.make_tensor_value_info(OUTPUT_NAME, TensorProto.FLOAT, ["batch", 1])],
        [
            numpy_helper.from_array(np.zeros((size, 1), np.float32), "w"),
            numpy_helper.from_array(np.array([actions_bias], np.float32), "b"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    manifest = Manifest.model_validate(
        {
            "format": 1,
            "name": "test",
            "schema": {"feature_set": FEATURES, "head": "bdp", "hash": schema_hash(FEATURES, "bdp")} | schema,
            "period": {"min_ms": 10, "packet_timed": True},
            "normaliser": Normaliser.reference().to_dict(),
            "target_range_ms": [25, 100],
            "congestion_controls": ["cubic"],
            "training": {"seed": 0, "env_steps": 0, "updates": 0, "config": {}, "traces": []},
            "versions": {},
            "metrics": {},
            "files": dict.fromkeys(PINNED_FILES, ""),
        }
    )
    content = dict.fromkeys(PINNED_FILES, b"") | {"policy.onnx": model.SerializeToString()}
    write_artifact(folder / "model", content, manifest)
    return folder / "model"


def write_config(folder: Path, model: object = "rule", **more: object) -> Path:
    values = {"model": str(model), "cgroups": ["/unused"], "socket": str(folder / "run" / "control.sock")} | more
    path = folder / "daemon.toml"
    path.write_text("[daemon]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
    return path


@pytest.fixture(autouse=True)
def no_daemon_left() -> Iterator[None]:
    """A test that fails leaves none running."""
    yield
    while Daemon.started:
        with Daemon.started.pop().process as process:
            process.kill()


class Daemon:
    """A daemon in a process of its own."""

    started: ClassVar[list["Daemon"]] = []

    def __init__(self, config: Path, fault: str = "none") -> None:
        self.socket = config.parent / "run" / "control.sock"
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(config), fault],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(self)

    def wait_for(self, condition: Callable[[ControlClient], object]) -> None:
        """Until the condition holds; an assertion that fails in it may hold later."""
        end_s = time.monotonic() + DEADLINE_S
        last: Exception | None = None
        while time.monotonic() < end_s and self.process.poll() is None:
            try:
                with ControlClient(self.socket) as client:
                    if condition(client):
                        return
            except (DaemonError, AssertionError) as error:
                last = error
            time.sleep(0.05)
        self.process.kill()
        pytest.fail(f"the daemon never got there: {last}\n{self.process.communicate()[1]}")

    def end(self, number: signal.Signals | None = None) -> tuple[int, str, list[dict[str, Any]]]:
        """Exit status, standard output and log records."""
        if number is not None:
            self.process.send_signal(number)
        try:
            out, err = self.process.communicate(timeout=DEADLINE_S)
        finally:
            self.process.kill()
        return self.process.returncode, out, [json.loads(line) for line in err.splitlines() if line.startswith("{")]


def has_capped(client: ControlClient) -> bool:
    return any(flow.cap_pkts for flow in client.flows().flows)


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
    assert [entry["event"] for entry in rest] == ["serving", "stopping", "stopped"]
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
    assert "hangs" in log[-1]["event"]
    assert not daemon.socket.exists()


def test_a_broken_shim_ends_it_with_caps_lifted(folder: Path) -> None:
    daemon = Daemon(write_config(folder), fault="shim")
    code, out, log = daemon.end()
    assert code == 1
    assert json.loads(out) == {"cap_at_close_pkts": 0}
    assert "ring buffer torn" in log[-1]["exception"]
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
    code, _, log = daemon.end(signal.SIGTERM)
    assert code == 0
    assert [entry["event"] for entry in log].count("cgroups lost") == 1


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
        manager.settimeout(3 * daemon_serve.CGROUP_CHECK_S)
        signs = 0
        with contextlib.suppress(TimeoutError):
            while signs < 100:  # those of the ticks before, however slow the host was; then none for three looks
                assert manager.recv(1000) == b"WATCHDOG=1"
                signs += 1
        assert signs < 100
        daemon.end(signal.SIGTERM)
        assert manager.recv(1000) == b"STOPPING=1"


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


def test_a_model_with_another_schema_is_refused(folder: Path) -> None:
    foreign = write_model(folder, hash=hashlib.sha256(b"other").hexdigest())
    config = DaemonConfig(model=str(foreign), cgroups=(Path("/x"),))
    with pytest.raises(ModelError, match="schema hash"):
        daemon_serve.load_agent(config)


def test_a_model_that_was_changed_is_refused(folder: Path) -> None:
    model = write_model(folder)
    (model / "policy.onnx").write_bytes((model / "policy.onnx").read_bytes() + b"\0")
    with pytest.raises(ModelError, match="changed after export"):
        daemon_serve.load_agent(DaemonConfig(model=str(model), cgroups=(Path("/x"),)))


def test_models_that_do_not_exist_or_need_a_simulator_are_refused() -> None:
    for name, message in [("rulee", "did you mean 'rule'"), ("clairvoyant:10", "only the simulator knows")]:
        with pytest.raises(ConfigError, match=message):
            daemon_serve.load_agent(DaemonConfig(model=name, cgroups=(Path("/x"),)))


def test_the_ceiling_reaches_the_model(folder: Path) -> None:
    config = DaemonConfig(model=str(write_model(folder)), cgroups=(Path("/x"),), ceiling_pkts=20)
    agent = daemon_serve.load_agent(config)
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
    open_files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError):
        daemon_serve.serve(DaemonConfig(model="rule", cgroups=(folder / "absent",), socket=folder / "c"))
    assert [signal.getsignal(number) for number in daemon_serve.STOP_SIGNALS] == before
    assert len(os.listdir("/proc/self/fd")) == open_files

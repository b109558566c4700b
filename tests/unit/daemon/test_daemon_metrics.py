"""What Prometheus reads: the numbers, who may ask, and that alerts and dashboard name only metrics that exist."""

import errno
import json
import os
import re
import socket as sockets
import socketserver
import stat
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from helpers.loops import HEALTHY, started
from helpers.places import ROOT
from reinet.agents.decide.baselines import Rule
from reinet.agents.decide.inspection.facts import KINDS
from reinet.agents.decide.loop import ControlLoop
from reinet.core.errors import DaemonError
from reinet.daemon import metrics_server
from reinet.daemon.endpoint import Endpoint
from reinet.daemon.metrics import LoopCollector
from reinet.daemon.metrics_server import MOST_REQUESTS, MetricsServer
from reinet.daemon.processes.claim import METRICS, SocketClaim

DEADLINE_S = 60.0
"""Only a test that fails takes so long."""
MONITORING = ROOT / "docs" / "monitoring"


def made_loop() -> ControlLoop:
    """A loop with a capped flow and one whose target is out of reach."""
    shim, made = started(Rule(1.5), 7)
    shim.counters = lambda: {"records_lost": 3, "flows_without_slot": 0, "slots_used": 12}  # type: ignore[attr-defined]
    for _ in range(5):
        shim.advance_ms(250)
        made.tick()
    shim.open_flow(8)
    shim.feed(8, **HEALTHY | {"min_rtt_us": 60_000, "rtt_mean_us": 70_000})
    made.tick()
    return made


MORE = {
    name: ("", lambda: 5)
    for name in ("log_lines_dropped", "event_log_dropped_points", "event_log_dropped_batches")
}  # fmt: skip


def scraped(text: str) -> dict[tuple[str, str], float]:
    """Samples by name and first label that is no bound's."""
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def exposition(made: ControlLoop) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(LoopCollector(made, MORE))
    return generate_latest(registry).decode()


def test_the_numbers_are_the_loops() -> None:
    seen = scraped(exposition(made_loop()))
    assert seen["reinet_healthy", ""] == 1
    assert seen["reinet_ticks_total", ""] == 7
    assert seen["reinet_decisions_total", ""] == seen["reinet_records_total", ""] == 2
    assert seen["reinet_caps_in_force", ""] == seen["reinet_flows", "capped"] == 1
    assert seen["reinet_flows", "too_tight"] == seen["reinet_verdicts_total", "too_tight"] == 1
    assert seen["reinet_shim_events_total", "records_lost"] == 3
    assert seen["reinet_flow_slots_used_most", ""] == 12
    assert ("reinet_shim_events_total", "slots_used") not in seen  # it is no count, whose rate would say something
    assert seen["reinet_policy_stood_down", "default"] == seen["reinet_policy_quarantined", "default"] == 0
    assert seen["reinet_log_lines_dropped_total", ""] == 5
    assert seen["reinet_flow_rtt_seconds_count", ""] == 2
    assert seen["reinet_flow_rtt_seconds_sum", ""] == pytest.approx(0.110)
    assert (seen["reinet_flow_rtt_seconds_bucket", "0.05"], seen["reinet_flow_rtt_seconds_bucket", "+Inf"]) == (1, 2)
    assert {kind for name, kind in seen if name == "reinet_flows"} == set(KINDS.values())


@pytest.mark.parametrize("raised", [TimeoutError("did not answer"), DaemonError("is being started anew")])
def test_of_a_loop_that_does_not_answer_prometheus_hears_that_it_is_not_well(
    monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    def fail() -> Any:
        raise raised

    made = made_loop()
    made.report("the decision process did not answer")
    for name in ("figures", "model"):
        monkeypatch.setattr(made, name, fail)
    assert scraped(exposition(made)) == {("reinet_healthy", ""): 0}


def test_no_metric_names_a_flow_and_their_number_is_bounded() -> None:
    shim, made = started(Rule(1.5), *range(1000, 1500))
    many = exposition(made)
    assert "1234" not in many
    assert len(many.splitlines()) == len(exposition(started(Rule(1.5), 7)[1]).splitlines())
    assert shim.cap_pkts(1234) == 30


def test_alerts_and_dashboard_name_only_what_there_is() -> None:
    text = exposition(made_loop())
    names = {name for name, _ in scraped(text)}
    events = {kind for name, kind in scraped(text) if name == "reinet_shim_events_total"}
    for path in (MONITORING / "alerts.yml", MONITORING / "grafana.json"):
        content = path.read_text()
        used = set(re.findall(r"\breinet_\w+", content))
        assert used <= names, f"{path.name}: {used - names}"
        assert set(re.findall(r'event=\\?"(\w+)', content)) <= events
        for kinds in re.findall(r'kind=~?\\?"([\w|]+)', content):
            assert set(kinds.split("|")) <= set(KINDS.values())


def test_alerts_and_dashboard_are_what_their_readers_expect() -> None:
    (group,) = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    assert len(group["rules"]) >= 5
    for rule in group["rules"]:
        assert {"alert", "expr", "labels", "annotations"} <= rule.keys() <= {*rule.keys(), "for"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
    dashboard = json.loads((MONITORING / "grafana.json").read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    assert all(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])


@pytest.fixture
def served() -> Iterator[MetricsServer]:
    server = MetricsServer(Endpoint("127.0.0.1"), LoopCollector(made_loop()))
    yield server
    server.close()


def ask(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=DEADLINE_S) as reply:
        return str(reply.read().decode())


def connected(port: int) -> sockets.socket:
    return sockets.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)


def until(condition: Callable[[], object]) -> None:
    for _ in range(600):
        with suppress(OSError, AssertionError):
            if condition():
                return
        threading.Event().wait(0.05)
    pytest.fail("timed out")


def test_prometheus_asks_over_loopback(served: MetricsServer) -> None:
    assert scraped(ask(served.port))["reinet_caps_in_force", ""] == 1
    with pytest.raises(urllib.error.HTTPError, match="404"):
        ask(served.port, "/etc/passwd")


def test_who_asks_only_whether_anybody_is_there_gets_the_head_alone(served: MetricsServer) -> None:
    with connected(served.port) as raw, raw.makefile("rb") as reply:
        raw.sendall(b"HEAD /metrics HTTP/1.0\r\n\r\n")
        head = reply.read()
    assert head.startswith(b"HTTP/1.0 200")
    assert head.endswith(b"\r\n\r\n")


def test_who_accepts_what_is_no_version_gets_the_usual_text(served: MetricsServer) -> None:
    with connected(served.port) as raw:
        raw.sendall(b"GET /metrics HTTP/1.1\r\nAccept: text/plain;version=a.b.c\r\n\r\n")
        assert raw.recv(65536).startswith(b"HTTP/1.0 200")


@pytest.mark.parametrize("request_", [b"POST /metrics HTTP/1.0\r\n\r\n", b"\xff" * 4096, b"GET /" + b"x" * 70_000])
def test_what_is_no_scrape_is_turned_away(served: MetricsServer, request_: bytes) -> None:
    with connected(served.port) as raw, suppress(OSError):
        raw.sendall(request_ + b"\r\n\r\n")
        assert not raw.recv(65536).startswith(b"HTTP/1.0 200")
    until(lambda: "reinet_healthy 1" in ask(served.port))


def test_callers_that_say_nothing_or_drip_are_few_and_cut_off(
    served: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "REQUEST_S", 1.0)
    threads = threading.active_count()
    holders = [connected(served.port) for _ in range(MOST_REQUESTS)]
    for holder in holders:
        holder.sendall(b"GET /metrics HTTP/1.0\r\nX-Drip: ")
    others = [connected(served.port) for _ in range(20)]
    for other in others:
        with suppress(OSError):
            assert other.recv(1) == b""  # closed unheard
    assert threading.active_count() <= threads + 2 * MOST_REQUESTS  # each has its timer
    for _ in range(15):  # a drop every 0.1 s keeps none of them alive
        for holder in holders:
            with suppress(OSError):
                holder.sendall(b"x")
        threading.Event().wait(0.1)
    until(lambda: "reinet_healthy 1" in ask(served.port))
    for raw in (*holders, *others):
        raw.close()


def test_fifty_callers_at_once_are_all_answered(served: MetricsServer) -> None:
    callers = [connected(served.port) for _ in range(50)]
    for caller in callers:
        caller.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    for caller in callers:
        with caller, caller.makefile("rb") as reply:
            assert b"reinet_healthy 1" in reply.read()


def test_one_that_waits_for_its_turn_does_not_hold_the_end_up() -> None:
    server = MetricsServer(Endpoint("127.0.0.1"), LoopCollector(made_loop()))
    callers = [connected(server.port) for _ in range(MOST_REQUESTS + 1)]
    until(lambda: server._server._free._value == 0)
    time.sleep(0.3)  # it waits for one of these by now
    start_s = time.monotonic()
    server.close()
    assert time.monotonic() - start_s < 1.5, "the loader waits two seconds for the end of everything"
    for caller in callers:
        caller.close()


def test_a_daemon_without_a_descriptor_left_rests_between_two_looks(
    served: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def accept(_self: object) -> Any:
        asked.append(time.monotonic())
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(socketserver.TCPServer, "get_request", accept)
        with connected(served.port):
            time.sleep(1)
    assert 2 <= len(asked) < 20
    assert "reinet_healthy 1" in ask(served.port)


@pytest.mark.parametrize("umask", [0o000, 0o177])
def test_a_unix_socket_is_never_open_to_others_and_no_umask_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    path, modes = tmp_path / "metrics.sock", []

    def bound(server: socketserver.TCPServer) -> None:
        real(server)
        modes.append(stat.S_IMODE(path.stat().st_mode))

    real = metrics_server._Server.server_bind
    monkeypatch.setattr(metrics_server._Server, "server_bind", bound)
    before = os.umask(umask)
    try:
        MetricsServer(Endpoint.parse(f"unix:{path}"), LoopCollector(made_loop())).close()
    finally:
        assert os.umask(before) == umask
    assert modes == [0o660 & ~umask]
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_a_unix_socket_is_its_owners_and_groups_and_goes_with_its_claim() -> None:
    with tempfile.TemporaryDirectory(prefix="reinet-test-") as folder:
        path = Path(folder) / "own" / "metrics.sock"
        with SocketClaim(path, METRICS):
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
            for _ in range(2):  # the second time in place of one that was killed
                server = MetricsServer(Endpoint.parse(f"unix:{path}"), LoopCollector(made_loop()))
                assert stat.S_IMODE(path.stat().st_mode) == 0o660
                with sockets.socket(sockets.AF_UNIX) as raw:
                    raw.connect(str(path))
                    raw.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                    with raw.makefile("rb") as reply:
                        assert b"reinet_caps_in_force 1" in reply.read()
                with pytest.raises(
                    DaemonError, match=r"socket of metrics .*: another daemon is .* set `metrics` to another path$"
                ):
                    SocketClaim(path, METRICS)
                server.close()
        assert os.listdir(folder) == []


def test_a_port_that_is_taken_is_refused_with_the_cure(served: MetricsServer) -> None:
    with pytest.raises(DaemonError, match=r"metrics at 127\.0\.0\.1:\d+: .*; set `metrics` to another place"):
        MetricsServer(Endpoint.parse(f"127.0.0.1:{served.port}"), LoopCollector(made_loop()))


@pytest.mark.parametrize("text", ["127.0.0.1:9469", "[::1]:9469", "unix:/run/reinet/metrics.sock"])
def test_an_endpoint_is_told_as_it_is_written(text: str) -> None:
    assert str(Endpoint.parse(text)) == text

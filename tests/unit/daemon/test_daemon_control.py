"""Control over a Unix socket: what callers see and may do, who may call, and what happens to hostile ones."""

import os
import socket as sockets
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from reinet.agents.decide.flows import FlowTable
from reinet.agents.decide.inspection.facts import Figures, FlowReport, ModelFacts, Snapshot
from reinet.agents.decide.inspection.order import chosen
from reinet.agents.decide.loop import Status
from reinet.agents.decide.swap import Canary
from reinet.alcc.processes import listen
from reinet.core.errors import DaemonError, ModelError
from reinet.core.records import FLOW_STATS_DTYPE
from reinet.core.target import Target
from reinet.daemon.answers import MOST_FLOWS
from reinet.daemon.client import ControlClient
from reinet.daemon.control import MAX_CALLS, MAX_REQUEST_BYTES, ControlServer
from reinet.daemon.processes.claim import PROGRAMS, SocketClaim, remove_stale_socket
from reinet.daemon.standard_services import MOST_REFLECTIONS

DEADLINE_S = 60.0
"""Only a test that fails takes so long."""


MOST_COOKIE = (1 << 64) - 1


class FakeLoop:
    """A loop that answers as told."""

    def __init__(self, flows: int = 2) -> None:
        self.paused = False
        self.target = "+30ms"
        self.hangs = False
        self.flows = flows

    def status(self) -> Status:
        return Status(
            not self.hangs, self.paused, "hangs" if self.hangs else "", self.target, 5, 6, self.flows, 1.5, 0, ()
        )

    def snapshot(self, most: int = 0, order: str = "", after: int = 0) -> Snapshot:
        stats = np.zeros(self.flows, FLOW_STATS_DTYPE)
        stats["cookie"] = np.arange(1, self.flows + 1)
        stats["time_ns"], stats["delivery_rate_bytes_per_s"] = 1_000_000_000, 1 << 40
        stats["cwnd_pkts"] = 40 + np.arange(self.flows)
        caps_pkts = np.where(np.arange(self.flows) % 2 == 0, 20, 0).astype(np.uint32)
        table = FlowTable(lambda _rows: None)
        table.stats, table.caps_pkts = stats, caps_pkts
        rows, _, live, following = chosen(table, most, order, after)
        reasons = ["" if cap else "why not" for cap in caps_pkts[rows]]
        return Snapshot(stats[rows], caps_pkts[rows], reasons, 1_250_000_000, live, next=following)

    def pause(self) -> int:
        if self.hangs:
            raise TimeoutError("the decision loop did not answer within 2 s")
        self.paused = True
        return 1

    def counters(self) -> dict[str, int]:
        return {}

    def resume(self) -> None:
        if self.hangs:
            raise TimeoutError("the decision loop did not answer within 2 s")
        self.paused = False

    def ticks(self) -> int:
        return 1

    def why(self, cookie: int) -> FlowReport | None:
        if cookie != MOST_COOKIE:
            return None
        features = ("a", "b")
        return FlowReport(
            self.snapshot().stats[:1], 1_250_000_000, 20, "", 400.0, "25ms", True, "default", "set", features,
            ("ms", "1"),
            np.array([[1, 2], [3, 4]], np.float32), 1_000_000_000, 20.0, "bdp", float("nan"), 0xFFFF_FFFF,
        )  # fmt: skip

    def set_target(self, cookie: int, target: str) -> str:
        if cookie not in (0, MOST_COOKIE):
            raise LookupError("no such flow")
        self.target = str(Target.parse(target)) if target else self.target
        return self.target

    def model(self) -> ModelFacts:
        return ModelFacts("folder", "sha256:1", "set", 10.0, True, target_range_ms=(25.0, 100.0), seed=0)

    def figures(self) -> Figures:
        raise NotImplementedError


@pytest.fixture
def loop(folder: Path) -> Iterator[FakeLoop]:
    served = FakeLoop()
    with SocketClaim(folder / "control.sock") as claim:
        server = ControlServer(claim, served, "checkpoints/default")
        yield served
        server.close()


def test_health_and_flows(loop: FakeLoop, folder: Path) -> None:
    with ControlClient(folder / "control.sock") as client:
        health = client.health()
        assert (health.ok, health.state, health.model, health.decisions, health.records, health.flows) == (
            True, "enforcing", "checkpoints/default", 5, 6, 2,
        )  # fmt: skip
        assert health.target == "+30ms"
        first, second = client.flows().flows
        assert (first.cookie, first.cap_pkts, first.reason, first.cwnd_pkts) == (1, 20, "", 40)
        assert (second.cookie, second.cap_pkts, second.reason) == (2, 0, "why not")
        assert second.delivery_rate_bytes_per_s == 1 << 40
        assert second.age_s == pytest.approx(0.25)


def test_flows_are_sorted_and_bounded_where_asked(loop: FakeLoop, folder: Path) -> None:
    loop.flows = 5
    with ControlClient(folder / "control.sock") as client:
        found = client.flows(most=2, order="cwnd")
        assert ([flow.cookie for flow in found.flows], found.live) == ([5, 4], 5)
        assert [flow.cookie for flow in client.flows(order="cap").flows] == [1, 3, 5, 2, 4]
        assert len(client.flows(most=99).flows) == 5
        with pytest.raises(DaemonError, match="there is no order 'x'; choose one of cap, cwnd"):
            client.flows(order="x")


def test_why_tells_a_flows_story(loop: FakeLoop, folder: Path) -> None:
    with ControlClient(folder / "control.sock") as client:
        story = client.why(MOST_COOKIE)
        assert (story.cap_pkts, story.lease_left_ms, story.target, story.own_target) == (20, 400, "25ms", True)
        assert (list(story.features), list(story.state)) == (["a", "b"], [1, 2, 3, 4])
        assert np.isnan(story.action)
        assert story.records[0].age_s == story.decided_age_s == pytest.approx(0.25)
        with pytest.raises(DaemonError, match="no flow 8 is open; `reinet ctl flows` lists them"):
            client.why(8)


def test_the_model_and_targets(loop: FakeLoop, folder: Path) -> None:
    with ControlClient(folder / "control.sock") as client:
        found = client.model()
        assert (found.name, list(found.target_range_ms), found.HasField("env_steps")) == ("folder", [25, 100], False)
        assert client.set_target(0, "2.5x") == "2.5x"
        assert client.set_target(MOST_COOKIE, "25ms") == "25ms"
        with pytest.raises(DaemonError, match="target 'fast': write 50ms"):
            client.set_target(0, "fast")
        with pytest.raises(DaemonError, match="no such flow"):
            client.set_target(8, "25ms")


def test_health_and_reflection_are_those_that_tools_know(loop: FakeLoop, folder: Path) -> None:
    with grpc.insecure_channel(f"unix:{folder / 'control.sock'}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "reinet.v1.Control"):
            request = health_pb2.HealthCheckRequest(service=service)
            assert stub.Check(request, timeout=DEADLINE_S).status == health_pb2.HealthCheckResponse.SERVING
        loop.hangs = True
        assert stub.Check(request, timeout=DEADLINE_S).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.RpcError) as caught:
            stub.Check(health_pb2.HealthCheckRequest(service="x"), timeout=DEADLINE_S)
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        found = ProtoReflectionDescriptorDatabase(channel)
        assert {"reinet.v1.Control", "grpc.health.v1.Health"} <= set(found.get_services())
        assert b"SetTargetRequest" in found.FindFileContainingSymbol("reinet.v1.Control").SerializeToString()


def test_streams_of_reflection_are_few_and_short(loop: FakeLoop, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reinet.daemon.standard_services.REFLECTION_S", 1.0)
    never = threading.Event()

    def silent() -> Iterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        never.wait(DEADLINE_S)

    with grpc.insecure_channel(f"unix:{folder / 'control.sock'}") as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        streams = [stub.ServerReflectionInfo(silent()) for _ in range(MOST_REFLECTIONS)]
        for stream in streams:
            assert next(stream).list_services_response.service
        with pytest.raises(grpc.RpcError) as caught:
            next(stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")])))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        with ControlClient(folder / "control.sock") as client:
            assert client.health().ok
        for stream in streams:
            with pytest.raises(grpc.RpcError):
                next(stream)  # its caller said nothing for a second
        never.set()


def test_pause_and_resume(loop: FakeLoop, folder: Path) -> None:
    with ControlClient(folder / "control.sock") as client:
        assert client.pause().released == 1
        assert client.health().state == "paused"
        client.resume()
        assert client.health().state == "enforcing"


def test_a_hanging_loop_is_told_apart(loop: FakeLoop, folder: Path) -> None:
    loop.hangs = True
    with ControlClient(folder / "control.sock") as client:
        assert not client.health().ok
        with pytest.raises(DaemonError, match=r"did not answer.*lapse by themselves"):
            client.pause()
        with pytest.raises(DaemonError, match="did not answer"):
            client.resume()


@pytest.mark.parametrize("raised", [TimeoutError("did not answer"), DaemonError("is being started anew")])
def test_whatever_does_not_answer_every_caller_hears_it_plainly_and_standard_error_nothing(
    loop: FakeLoop, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], raised: Exception
) -> None:
    def fail(*_: object) -> Any:
        raise raised

    for name in ("snapshot", "why", "model", "set_target", "pause", "resume"):
        monkeypatch.setattr(loop, name, fail)
    with ControlClient(folder / "control.sock") as client:
        asking = (lambda: client.why(1), lambda: client.set_target(0, "50ms"))
        for call in (client.flows, client.model, client.pause, client.resume, *asking):
            with pytest.raises(DaemonError, match=f"daemon at {folder / 'control.sock'}: {raised}"):
                call()
    assert capfd.readouterr().err == ""


def test_many_flows_come_page_by_page(loop: FakeLoop, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reinet.daemon.client.TIMEOUT_S", DEADLINE_S)
    loop.flows = 100_000  # more than gRPC's usual 4 MB
    with ControlClient(folder / "control.sock") as client:
        assert [flow.cookie for flow in client.flows().flows] == list(range(1, 100_001))
        found = client.flows(most=30_000)
        assert ([flow.cookie for flow in found.flows], found.live) == (list(range(1, 30_001)), 100_000)
        assert len(client.flows(order="cwnd").flows) == MOST_FLOWS


def test_the_socket_is_its_owners_alone(loop: FakeLoop, folder: Path) -> None:
    found = (folder / "control.sock").stat()
    assert stat.S_ISSOCK(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert found.st_uid == os.geteuid()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else: run `sudo -E make test`")
def test_another_user_may_not_call(loop: FakeLoop, folder: Path) -> None:
    stranger = (
        "import os, socket, sys\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: socket.socket(socket.AF_UNIX).connect(sys.argv[1])\n"
        "except PermissionError: sys.exit(0)\n"
        "sys.exit('connected')\n"
    )
    subprocess.run([sys.executable, "-c", stranger, str(folder / "control.sock")], check=True, timeout=DEADLINE_S)


def test_the_folder_made_for_the_socket_is_closed_and_goes_again(folder: Path) -> None:
    path = folder / "reinet" / "control.sock"
    with SocketClaim(path) as claim:
        server = ControlServer(claim, FakeLoop(), "m")
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        server.close()
    assert list(folder.iterdir()) == []


def serve_once(path: Path) -> None:
    """A daemon claims the socket, answers and ends."""
    with SocketClaim(path) as claim:
        server = ControlServer(claim, FakeLoop(), "m")
        with ControlClient(path) as client:
            assert client.health().ok
        server.close()


def test_a_path_with_odd_characters(folder: Path) -> None:
    serve_once(folder / os.fsdecode(b"a b%41?#c\xff") / "control.sock")  # of which the last is no UTF-8
    assert list(folder.iterdir()) == []


def test_a_live_daemon_keeps_its_socket(loop: FakeLoop, folder: Path) -> None:
    with pytest.raises(DaemonError, match="another daemon is listening there"):
        SocketClaim(folder / "control.sock")
    with ControlClient(folder / "control.sock") as client:
        assert client.health().ok


def test_the_socket_of_programs_is_claimed_as_well(folder: Path) -> None:
    path = folder / "programs" / "socket"
    with SocketClaim(path, PROGRAMS), listen(path).socket:
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
        with pytest.raises(DaemonError, match=r"another daemon is listening there; .* set `processes`"):
            SocketClaim(path, PROGRAMS)
    assert list(folder.iterdir()) == []
    with listen(folder / "socket").socket as live:
        with pytest.raises(DaemonError, match="another daemon is listening there"):
            SocketClaim(folder / "socket", PROGRAMS)
        live.close()
        with SocketClaim(folder / "socket", PROGRAMS) as claim:
            assert claim.replaced
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["a\0b/socket", "x" * 300 + "/socket", "file/socket"])
def test_a_path_that_cannot_be_is_refused_with_the_key_to_set(folder: Path, name: str) -> None:
    (folder / "file").touch()
    with pytest.raises(DaemonError, match="set `processes`"):
        SocketClaim(folder / name, PROGRAMS)


def test_a_foreign_listener_keeps_its_socket(folder: Path) -> None:
    path = folder / "control.sock"
    with sockets.socket(sockets.AF_UNIX) as foreign:
        foreign.bind(str(path))
        foreign.listen()
        with pytest.raises(DaemonError, match="another daemon is listening there"):
            SocketClaim(path)
        assert path.is_socket()
    assert [p.name for p in folder.iterdir()] == ["control.sock"]


def test_a_stale_socket_is_replaced(folder: Path) -> None:
    path = folder / "control.sock"
    with sockets.socket(sockets.AF_UNIX) as dead:
        dead.bind(str(path))
    (folder / "control.sock.lock").touch()  # a killed daemon leaves both
    serve_once(path)
    assert list(folder.iterdir()) == []


def test_only_a_stale_socket_is_removed(loop: FakeLoop, folder: Path) -> None:
    assert not remove_stale_socket(folder / "control.sock")
    assert not remove_stale_socket(folder / "absent")
    (folder / "file").touch()
    assert not remove_stale_socket(folder / "file")
    with sockets.socket(sockets.AF_UNIX) as dead:
        dead.bind(str(folder / "dead"))
    assert remove_stale_socket(folder / "dead")
    assert sorted(p.name for p in folder.iterdir()) == ["control.sock", "control.sock.lock", "file"]


def test_what_is_no_socket_is_never_removed(folder: Path) -> None:
    path = folder / "control.sock"
    path.write_text("precious")
    with pytest.raises(DaemonError, match="something else is there"):
        SocketClaim(path)
    assert path.read_text() == "precious"
    assert [p.name for p in folder.iterdir()] == ["control.sock"]


def test_a_folder_that_others_may_write_is_refused(folder: Path) -> None:
    folder.chmod(0o777)
    with pytest.raises(DaemonError, match="other users may replace files"):
        SocketClaim(folder / "control.sock")
    assert list(folder.iterdir()) == []
    with pytest.raises(DaemonError, match="No such file or directory"):
        SocketClaim(folder / "deep" / "er" / "control.sock")


def test_another_model_is_put_in_or_the_caller_hears_why_not(folder: Path) -> None:
    asked: list[tuple[str, str]] = []

    def swap(model: str, policy: str) -> Canary:
        asked.append((model, policy))
        if model == "slow":
            raise TimeoutError("the decision process did not answer within 3 s")
        if model != "rule":
            raise ModelError(f"{model}: no such model")
        return Canary(100, 3, 1.5)

    with (
        SocketClaim(folder / "control.sock") as claim,
        closing(ControlServer(claim, FakeLoop(), "m", swap)),
        ControlClient(claim.path) as client,
    ):
        reply = client.swap("rule", "video")
        assert (reply.states, reply.refused, reply.us_per_state) == (100, 3, 1.5)
        with pytest.raises(DaemonError, match="none: no such model"):
            client.swap("none", "")
        with pytest.raises(DaemonError, match="within 3 s; `reinet ctl health` and the log say"):
            client.swap("slow", "")
    assert asked == [("rule", "video"), ("none", ""), ("slow", "")]


def test_hostile_callers_are_turned_away(loop: FakeLoop, folder: Path) -> None:
    path = folder / "control.sock"
    for payload in (os.urandom(4096), b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(999)):
        with sockets.socket(sockets.AF_UNIX) as raw:
            raw.connect(str(path))
            raw.sendall(payload)
    idle = [sockets.socket(sockets.AF_UNIX) for _ in range(50)]
    try:
        for raw in idle:
            raw.connect(str(path))
        with grpc.insecure_channel(f"unix:{path}") as channel:
            call = channel.unary_unary("/reinet.v1.Control/Pause")
            with pytest.raises(grpc.RpcError) as caught:
                call(bytes(MAX_REQUEST_BYTES + 1), timeout=DEADLINE_S)
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            with pytest.raises(grpc.RpcError):
                call(b"\xff" * 100, timeout=DEADLINE_S)  # no message at all
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary("/reinet.v1.Control/Shutdown")(b"", timeout=DEADLINE_S)
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert not loop.paused
        with ControlClient(path) as client:
            assert client.health().ok
    finally:
        for raw in idle:
            raw.close()


def test_a_flood_is_refused_and_ends(loop: FakeLoop, folder: Path) -> None:
    path = folder / "control.sock"
    inside, go_on = threading.Semaphore(0), threading.Event()

    def pause() -> int:
        inside.release()
        go_on.wait(60)
        return 0

    loop.pause = pause  # type: ignore[method-assign]
    alone = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
    with grpc.insecure_channel(f"unix:{path}", options=alone) as one:
        pause = one.unary_unary("/reinet.v1.Control/Pause")
        pending = [pause.future(b"", timeout=DEADLINE_S) for _ in range(MAX_CALLS)]
        assert all(inside.acquire(timeout=DEADLINE_S) for _ in pending)
        with (
            grpc.insecure_channel(f"unix:{path}", options=alone) as other,
            pytest.raises(grpc.RpcError) as caught,
        ):
            other.unary_unary("/reinet.v1.Control/Health")(b"", timeout=DEADLINE_S)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        go_on.set()
        for call in pending:
            call.result()
    with ControlClient(path) as client:
        assert client.health().ok

"""Calls between processes: plain data goes through unchanged, and nothing else goes through at all."""

import gc
import json
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast

import grpc
import numpy as np
import pytest
from grpc_reflection.v1alpha import reflection
from numpy.typing import NDArray

from reinet.agents.decide.inspection.facts import Snapshot
from reinet.agents.decide.verdicts import Why, text
from reinet.core.errors import ConfigError, DaemonError
from reinet.core.guard import VERDICT_DTYPE
from reinet.core.records import FLOW_STATS_DTYPE
from reinet.daemon.answers import MOST_FLOWS
from reinet.daemon.client import ControlClient
from reinet.daemon.config import DaemonConfig, RecordConfig, RegistryConfig
from reinet.daemon.control import MAX_CALLS, ControlServer
from reinet.daemon.processes import front, plain, remote, sandbox
from reinet.daemon.processes.child import Child
from reinet.daemon.processes.claim import SocketClaim
from reinet.daemon.processes.controlled import Controlled, Supervised
from reinet.daemon.processes.front import LoopAfar
from reinet.daemon.processes.supervisor import MAX_ANSWER_BYTES, Supervisor
from reinet.daemon.serve import agent_for, load_kernel, open_shim

REFLECTION = f"{reflection.SERVICE_NAME}/ServerReflectionInfo"


@dataclass(frozen=True)
class Inner:
    numbers: NDArray[np.float32]
    note: str | None


@dataclass(frozen=True)
class Outer:
    inner: list[Inner]
    range_ms: tuple[float, float]


class Calls(Protocol):
    def outer(self) -> Outer: ...
    def add(self, a: int, b: int = 0) -> int: ...
    def fail(self, how: str) -> None: ...
    def slow(self) -> None: ...
    def secret_type(self) -> object: ...
    def long(self) -> str: ...


class Target:
    def __init__(self) -> None:
        self.go = threading.Event()

    def outer(self) -> Outer:
        return Outer([Inner(np.array([[1.5, 2.5]], np.float32), None)], (1.0, 2.0))

    def add(self, a: int, b: int = 0) -> int:
        return a + b

    def fail(self, how: str) -> None:
        raise {"config": ConfigError, "time": TimeoutError, "lookup": LookupError}.get(how, RuntimeError)("because")

    def slow(self) -> None:
        self.go.wait(60)

    def secret_type(self) -> object:
        return object()

    def long(self) -> str:
        return "x" * 1000

    def hidden(self) -> str:
        return "not in the protocol"


@pytest.fixture
def target() -> Target:
    return Target()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there
        for end in (here, there):
            with suppress(OSError):  # its owner has closed it
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def afar(target: Target, ends: tuple[socket.socket, socket.socket]) -> Iterator[Any]:
    here, there = ends
    remote.Responder(there, target, Calls)
    yield remote.Remote(here, Calls)
    target.go.set()


def test_dataclasses_arrays_and_tuples_arrive_as_they_were(afar: Any) -> None:
    outer = afar.outer()
    assert isinstance(outer, Outer)
    assert outer.range_ms == (1.0, 2.0)
    assert outer.inner[0].note is None
    assert outer.inner[0].numbers.dtype == np.float32
    assert outer.inner[0].numbers.tolist() == [[1.5, 2.5]]
    assert afar.add(2, b=3) == 5


def test_a_caller_who_is_refused_again_and_again_is_told_why_each_time(afar: Any, tmp_path: Path) -> None:
    """After some eight errors of the decision process's a caller heard 'Stream removed', and who came next as well:
    each error kept its call's stream, of which a connection has eight, until the interpreter looked for cycles."""
    loop: Any = SimpleNamespace(set_target=lambda *_: afar.fail("config"))
    gc.disable()
    try:
        with (
            SocketClaim(tmp_path / "s") as claim,
            closing(ControlServer(claim, loop, "rule")),
            ControlClient(claim.path) as caller,
        ):
            for _ in range(3 * MAX_CALLS):
                with pytest.raises(DaemonError, match="because"):
                    caller.set_target(0, "50ms")
    finally:
        gc.enable()


@pytest.mark.parametrize("method", ["reinet.v1.Control/Pause", "grpc.health.v1.Health/Check", REFLECTION])
def test_requests_that_are_no_messages_are_refused_and_keep_no_stream(tmp_path: Path, method: str) -> None:
    loop: Any = SimpleNamespace(pause=lambda: 0, status=lambda: SimpleNamespace(ok=True))
    with (
        SocketClaim(tmp_path / "s") as claim,
        closing(ControlServer(claim, loop, "rule")),
        grpc.insecure_channel(f"unix:{claim.path}") as channel,
    ):
        one, all_of = channel.unary_unary(f"/{method}"), channel.stream_stream(f"/{method}")

        def call(request: bytes) -> list[bytes]:
            return list(all_of(iter([request]), timeout=60)) if method == REFLECTION else [one(request, timeout=60)]

        for _ in range(2 * MAX_CALLS):  # a connection has no more streams than calls may be served
            with pytest.raises(grpc.RpcError) as caught:
                call(b"\xff" * 100)
            assert caught.value.details() == f"this is no request of /{method}'s"
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert call(b"")


def test_a_page_of_flows_with_the_longest_reasons_arrives(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    flows = MOST_FLOWS
    longest = text(np.array((Why.TOO_TIGHT, 0, 2**32 - 1, 2**32 - 1, 2**32 - 1), VERDICT_DTYPE), 2**32 - 1)
    stats = np.zeros(flows, FLOW_STATS_DTYPE)
    stats["cookie"] = np.arange(flows)
    sent = Snapshot(stats, np.arange(flows, dtype=np.uint32), [longest] * flows, 7, 2**20)
    sender = threading.Thread(target=plain.send, args=(there, sent))
    sender.start()
    got = plain.receive(here, plain.dataclasses_in([Snapshot]))
    sender.join()
    assert isinstance(got, Snapshot)
    assert got.stats.dtype == FLOW_STATS_DTYPE
    assert (got.stats == stats).all()
    assert (got.caps_pkts == sent.caps_pkts).all()
    assert (got.reasons, got.now_ns) == (sent.reasons, 7)


def test_an_answer_that_is_too_long_is_told_and_calls_go_on(afar: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "MAX_FRAME_BYTES", 500)
    with pytest.raises(ValueError, match=r"long: a message of \d+ bytes is longer than 500"):
        afar.long()
    assert afar.add(1, 1) == 2


def test_errors_are_raised_as_they_were(afar: Any) -> None:
    for how, kind in [("config", ConfigError), ("time", TimeoutError), ("lookup", LookupError), ("?", DaemonError)]:
        with pytest.raises(kind, match="because"):
            afar.fail(how)


def test_only_the_protocols_methods_can_be_called_and_only_plain_data_comes_back(afar: Any) -> None:
    for name in ("hidden", "__init__", "go"):
        with pytest.raises(DaemonError, match=f"no call '{name}'"):
            afar.call(name)
    with pytest.raises(TypeError, match="secret_type: object is no plain data"):
        afar.secret_type()
    assert afar.add(1) == 1


def test_a_call_that_hangs_hangs_alone(afar: Any, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(remote, "ANSWER_S", 0.3)
        with pytest.raises(TimeoutError, match="did not answer within"):
            afar.slow()
    assert afar.add(1, 1) == 2
    target.go.set()


def test_calls_of_a_process_that_is_stopped_are_refused_before_its_socket_is_full(
    target: Target, ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = ends
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)
    caller: Any = remote.Remote(here, Calls)
    unanswered: list[str] = []

    def ask() -> None:
        for _ in range(1000):
            try:
                caller.add(1)
            except TimeoutError as error:
                unanswered.append(str(error))

    with monkeypatch.context() as patched:
        patched.setattr(remote, "ANSWER_S", 0.001)
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(30)
        assert not asking.is_alive()  # who would send for good obeys no signal
    assert unanswered[-1] == "too many calls wait for the decision process"
    remote.Responder(there, target, Calls)  # it goes on
    for _ in range(600):
        with suppress(TimeoutError):
            assert caller.add(1, 1) == 2
            break
        time.sleep(0.05)
    else:
        pytest.fail("no call is answered any more")


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack("<II", 0xFFFFFFFF, 0),  # longer than any
        struct.pack("<II", 4, 0) + b"nope",
        struct.pack("<II", 20, 0) + b'{"$of":"Path","x":1}',  # a type that nobody named
        struct.pack("<II", 2, 0) + b"[]",
        struct.pack("<II", 27, 0) + b'[1,null,{"$array":[0,"O",1]}',
        b"short",
    ],
)
def test_nonsense_ends_the_connection_and_nothing_else(frame: bytes, ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    caller: Any = remote.Remote(here, Calls)
    there.sendall(frame)
    there.shutdown(socket.SHUT_RDWR)
    with pytest.raises(DaemonError, match="gone"):
        caller.add(1, 1)


@pytest.mark.parametrize("result", [None, "2", 2.5, [2], Inner(np.zeros(1), None)])
def test_an_answer_of_another_kind_ends_the_link(result: object, ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    caller: Any = remote.Remote(here, Calls)
    asking = threading.Thread(target=lambda: plain.send(there, [plain.receive(there)[0], None, result]), daemon=True)
    asking.start()
    with pytest.raises(DaemonError, match=r"gone \(it answers add with "):
        caller.add(1, 1)
    asking.join(5)
    assert "it answers add with" in caller.gone


@pytest.mark.parametrize(("value", "is_sound"), [(np.zeros(1), True), (5, False), (None, False)])
def test_a_name_for_a_type_stands_for_the_type(value: object, is_sound: bool) -> None:
    """NumPy's NDArray is one on newer Pythons, where everything passed for an array."""
    named = SimpleNamespace(__value__=np.ndarray[Any, np.dtype[np.float32]])  # as TypeAliasType has it
    assert plain.fits(value, named) is is_sound


@pytest.mark.parametrize(
    ("result", "is_sound"),
    [
        (Outer([Inner(np.zeros(1), None)], (1.0, 2.0)), True),
        (Outer([Inner(np.zeros(1), "x")], (1.0, 2.0)), True),
        (Outer([5], (1.0, 2.0)), False),  # type: ignore[list-item]
        (Outer([Inner(5, None)], (1.0, 2.0)), False),  # type: ignore[arg-type]
        (Outer(None, (1.0, 2.0)), False),  # type: ignore[arg-type]
    ],
)
def test_what_a_dataclass_holds_is_looked_at_too(result: Outer, is_sound: bool) -> None:
    assert plain.fits(result, Outer) is is_sound


@pytest.mark.parametrize(
    "array",
    [
        [0, "<u8", [1 << 40]],
        [0, "|O", [1]],
        [-8, "<u8", [1]],
        [0, "<u8", [-2]],
        [0, "<u8", [1]] * 2,
        [0, "<u8", [1 << 70]],
        [0, "f4,,", [1]],
    ],
)
def test_an_array_that_claims_more_than_there_is_is_refused(
    array: list[object], ends: tuple[socket.socket, socket.socket]
) -> None:
    here, there = ends
    text = json.dumps({"$array": array}).encode()
    there.sendall(struct.pack("<II", len(text), 8) + text + bytes(8))
    with pytest.raises(plain.BrokenError, match="means nothing"):
        plain.receive(here)


def test_a_loop_that_is_gone_is_not_well_and_says_so(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    loop: Any = LoopAfar(here, Controlled)
    there.close()
    status = loop.status()
    assert not status.ok
    assert "the decision process is gone" in status.problem


def supervisor_of(loop: LoopAfar, *children: Child) -> Supervisor:
    config, claim = DaemonConfig(model="rule", cgroups=(Path("/unused"),)), cast(SocketClaim, SimpleNamespace())
    made = Supervisor(config, None, claim, agent_for, open_shim, load_kernel)
    made._children, made._afar, made.loop = list(children), loop, cast(Supervised, loop)
    return made


def goes_on(link: socket.socket) -> None:
    plain.receive(link)


def takes_its_time_to_end(link: socket.socket) -> None:
    link.recv(1)
    time.sleep(0.3)


@pytest.mark.parametrize(
    ("work", "how"),
    [
        (goes_on, "lives, and its link is broken: a message of 4294967295 bytes is longer than 4194304"),
        (takes_its_time_to_end, "ended with status 0"),
    ],
)
def test_a_link_that_breaks_while_its_process_lives_counts_as_the_end_of_that_process(
    work: Any, how: str, ends: tuple[socket.socket, socket.socket]
) -> None:
    here, there = ends
    process = Child("decision", work)
    try:
        loop = LoopAfar(here, Supervised, MAX_ANSWER_BYTES)
        supervisor = supervisor_of(loop, process)
        assert supervisor.ended() == ""
        process.link.sendall(b"!" if work is takes_its_time_to_end else b"")
        there.sendall(struct.pack("<II", 0xFFFFFFFF, 0))
        while not loop.gone:
            time.sleep(0.01)
        assert supervisor.ended() == f"the decision process {how}"
    finally:
        process.kill()


def test_a_decision_process_that_was_killed_is_told_by_how_it_ended(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    process = Child("decision", goes_on)
    try:
        loop = LoopAfar(here, Supervised)
        supervisor = supervisor_of(loop, process)
        os.kill(process.pid, signal.SIGKILL)
        there.shutdown(socket.SHUT_RDWR)
        while not (how := supervisor.ended()):
            time.sleep(0.01)
        assert how == "the decision process was ended by SIGKILL"
    finally:
        process.kill()


@pytest.mark.parametrize("character", ["x", "ß", "\U0001f512"])
def test_a_problem_of_any_length_is_told_and_breaks_no_link(
    character: str, ends: tuple[socket.socket, socket.socket]
) -> None:
    here, there = ends
    told: list[str] = []
    remote.Responder(there, SimpleNamespace(report=told.append, ticks=lambda: 5), Supervised)
    loop: Any = LoopAfar(here, Supervised)
    supervisor = supervisor_of(loop)
    for problem in ("cgroup lost", character * 100_000):
        supervisor.report(problem)
    assert told[0] == "cgroup lost"
    assert told[1].startswith(character * 1000)
    assert told[1].endswith(" ...")
    assert loop.ticks() == 5


def test_at_the_end_nothing_of_the_host_waits_for_a_service(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def ends_as(name: str) -> Any:
        return lambda *_: ended.append(name)

    monkeypatch.setattr(sandbox, "confine_answers", lambda: None)
    monkeypatch.setattr("reinet.daemon.followed.follow", lambda *_: ends_as("registry"))
    monkeypatch.setattr("reinet.daemon.processes.flow_sender.FlowSender.close", ends_as("service"))
    monkeypatch.setattr(front.EventLog, "close", ends_as("curves"))
    monkeypatch.setattr(front.FlowRecorder, "end_all", ends_as("recordings"))
    monkeypatch.setattr(front.MetricsServer, "close", ends_as("metrics"))
    where = RegistryConfig(address=f"unix:{folder}/nobody")
    record = RecordConfig(folder=folder / "flows", send=True)
    config = DaemonConfig(model="rule", cgroups=(folder,), log_dir=folder / "log", record=record, registry=where,
                          metrics=f"unix:{folder}/metrics.sock")  # fmt: skip
    loader, link = socket.socketpair()
    loop_in, loop_out = socket.socketpair()
    records_in, records_out = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with loader, link, loop_in, loop_out, records_in, records_out, SocketClaim(folder / "control.sock") as claim:
        plain.send(loader, "stop")
        front.answer(link, config, claim, "rule", "", front.Sockets(loop_in, records_in))
        loop_in.shutdown(socket.SHUT_RDWR)
    assert ended == ["metrics", "recordings", "curves", "registry", "service"]

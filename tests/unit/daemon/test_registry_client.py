"""A daemon that follows a name: it gets every model once, checked; the service being away changes nothing."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from helpers.places import ROOT
from reinet.agents.model.artifact import MANIFEST_FILE, PINNED_FILES, load_artifact
from reinet.core.errors import ModelError
from reinet.daemon import registry
from reinet.daemon.registry import Address, Follower, fetch
from reinet.proto import trainer_pb2 as pb
from reinet.proto import trainer_pb2_grpc

FOLDERS = {load_artifact(ROOT / "checkpoints" / name).manifest_sha256: ROOT / "checkpoints" / name
           for name in ("default", "small")}  # fmt: skip
FIRST, SECOND = FOLDERS


class Registry(trainer_pb2_grpc.ModelsServicer):
    """A registry of two models, whose answers a test may spoil."""

    def __init__(self) -> None:
        self.model = FIRST
        self.number = 1
        self.moved = threading.Condition()
        self.spoil: Callable[[str, bytes], tuple[str, bytes]] = lambda name, data: (name, data)
        self.reports: list[pb.ReportRequest] = []
        self.streams = True

    def move(self, model: str) -> None:
        with self.moved:
            self.model, self.number = model, self.number + 1
            self.moved.notify_all()

    def _pointer(self) -> pb.Pointer:
        return pb.Pointer(name="production", model=self.model, number=self.number)

    def Follow(self, request: pb.FollowRequest, context: Any) -> Iterator[pb.Pointer]:  # noqa: N802
        if not self.streams:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "poll instead")
        while context.is_active():
            yield self._pointer()
            with self.moved:
                self.moved.wait(0.1)

    def Resolve(self, request: pb.ResolveRequest, context: Any) -> pb.Pointer:  # noqa: N802
        return self._pointer()

    def Fetch(self, request: pb.ModelRequest, context: Any) -> Iterator[pb.FileChunk]:  # noqa: N802
        for name in (MANIFEST_FILE, *PINNED_FILES):
            name, data = self.spoil(name, (FOLDERS[request.model] / name).read_bytes())
            yield pb.FileChunk(file=name, data=data[:1000])
            yield pb.FileChunk(data=data[1000:])

    def Report(self, request: pb.ReportRequest, context: Any) -> pb.ReportReply:  # noqa: N802
        self.reports.append(request)
        return pb.ReportReply()


class Host:
    """A registry that listens, until it does not."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.models = Registry()
        self.server: Any = None
        self.up()

    def up(self) -> None:
        self.server = grpc.server(ThreadPoolExecutor(8))
        add: Any = trainer_pb2_grpc
        add.add_ModelsServicer_to_server(self.models, self.server)
        self.server.add_insecure_port(f"unix:{self.socket}")
        self.server.start()

    def down(self) -> None:
        self.server.stop(0).wait()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path / "s")
    yield made
    made.down()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(registry, "MOST_PAUSE_S", 0.1)


class Daemon:
    """What follows, and what it swapped in."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.swapped: list[tuple[Path, str]] = []
        self.refuse = ""
        address = Address(f"unix:{host.socket}")
        self.follower = Follower(address, "production", "host-1", folder, self.swap, "1.0", lambda: {"kept": 0.97})
        self.follower.start()

    def swap(self, folder: Path, sha256: str) -> None:
        if self.refuse:
            raise ModelError(self.refuse)
        self.swapped.append((folder, sha256))

    def models(self) -> list[str]:
        return [sha256 for _, sha256 in self.swapped]


def until(true: Callable[[], object]) -> None:
    end_s = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.01)


@pytest.fixture
def daemon(host: Host, tmp_path: Path, impatient: None) -> Iterator[Daemon]:
    made = Daemon(host, tmp_path / "models")
    yield made
    made.follower.close()


def test_every_promotion_is_swapped_in_once_and_reported(host: Host, daemon: Daemon, tmp_path: Path) -> None:
    until(lambda: daemon.models() == [FIRST])
    host.models.move(SECOND)
    until(lambda: daemon.models() == [FIRST, SECOND])
    until(lambda: host.models.reports and host.models.reports[-1].model == SECOND)
    report = host.models.reports[-1]
    assert (report.daemon, report.name, report.version, dict(report.figures)) == (
        "host-1", "production", "1.0", {"kept": 0.97},
    )  # fmt: skip
    folder, sha256 = daemon.swapped[-1]
    assert load_artifact(folder, sha256).manifest_sha256 == SECOND
    assert daemon.follower.last_known() == tmp_path / "models" / SECOND


def test_a_service_that_is_away_changes_nothing_and_is_found_again(host: Host, daemon: Daemon) -> None:
    until(lambda: daemon.models() == [FIRST])
    host.down()
    until(lambda: daemon.follower.problem)
    assert daemon.models() == [FIRST]
    assert "no training service answers" in daemon.follower.problem
    host.models.move(SECOND)
    host.up()
    until(lambda: daemon.models() == [FIRST, SECOND])
    assert not daemon.follower.problem


def test_without_streams_it_polls(host: Host, daemon: Daemon) -> None:
    host.models.streams = False
    host.down()
    host.models.move(SECOND)
    host.up()
    until(lambda: daemon.models()[-1:] == [SECOND])


def test_a_name_that_points_to_nothing_changes_nothing(host: Host, daemon: Daemon) -> None:
    until(lambda: daemon.models() == [FIRST])
    host.models.move("")
    before = len(host.models.reports)
    until(lambda: len(host.models.reports) > before + 2)
    assert daemon.models() == [FIRST]


def test_a_model_that_the_swap_refuses_is_reported_and_tried_again(host: Host, daemon: Daemon) -> None:
    until(lambda: daemon.models() == [FIRST])
    daemon.refuse = "the canary\nwas worse"
    host.models.move(SECOND)
    until(lambda: host.models.reports[-1].problem == "the canary was worse")
    assert host.models.reports[-1].model == FIRST
    daemon.refuse = ""
    until(lambda: daemon.models() == [FIRST, SECOND])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda name, data: (name, data[:-1] + b"x"),
        lambda name, data: ("../x" if name == "README.md" else name, data),
        lambda name, data: ("manifest.json", data),
        lambda name, data: ("" if name == "manifest.json" else name, data),
        lambda name, data: (name, data + b"x" * 1_000_000),
    ],
    ids=["other bytes", "a path", "a file twice", "bytes of no file", "more bytes"],
)
def test_what_is_not_the_model_is_not_taken(host: Host, tmp_path: Path, spoil: Any) -> None:
    host.models.spoil = spoil
    with grpc.insecure_channel(f"unix:{host.socket}") as channel:
        stub: Any = trainer_pb2_grpc.ModelsStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(ModelError):
            fetch(stub, FIRST, tmp_path / "models")
        assert not list(tmp_path.glob("models/*"))
        with pytest.raises(ModelError, match="is no sha256"):
            fetch(stub, "../../x", tmp_path / "models")
        host.models.spoil = lambda name, data: (name, data)
        assert fetch(stub, FIRST, tmp_path / "models").name == FIRST
    assert not list(tmp_path.glob("x"))

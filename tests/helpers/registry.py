"""A registry of two models that listens until it does not, and whose answers a test may spoil."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from helpers.places import ROOT
from reinet.agents.model.artifact import MODEL_FILES, load_artifact
from reinet.daemon import registry
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
        for name in MODEL_FILES:
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


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has who follows wait for less than the tests do."""
    for patience, seconds in {
        "FIRST_PAUSE_S": 0.02, "MOST_PAUSE_S": 0.1, "POLL_S": 0.1, "SILENCE_S": 3.0, "TIMEOUT_S": 3.0, "FETCH_S": 3.0,
    }.items():  # fmt: skip
        monkeypatch.setattr(registry, patience, seconds)

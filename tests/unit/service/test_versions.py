"""A release and the one before it, or after it: service and daemon speak with one that speaks as was once recorded.

The older side has the messages and calls of ``trainer_v1.json`` and no others; the newer one sends with every message a
field that the present release has never heard of.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from helpers.places import ROOT
from helpers.registry import FIRST, FOLDERS, SECOND
from helpers.trainer import TINY, Service, put_model
from helpers.waiting import wait_for
from reinet.agents.model.artifact import MODEL_FILES
from reinet.daemon import registry
from reinet.daemon.registry import Address, Follower

RECORDED = json.loads(Path(__file__).with_name("trainer_v1.json").read_text())
PACKAGE = "reinet.trainer.v1"
LATER = "of_a_later_release"


def messages(later: bool) -> Any:
    """The recorded messages as classes of their own, by name; ``later``: with one field more in each."""
    file = FileDescriptorProto(name="recorded.proto", package=PACKAGE, syntax="proto3")
    made: dict[str, Any] = {}
    for name in sorted({call.rpartition(".")[2] for pair in RECORDED["calls"].values() for call in pair[:2]}):
        made[name] = file.message_type.add(name=name)
    for path, (number, kind, repeated) in sorted(RECORDED["fields"].items(), key=lambda one: one[0].count(".")):
        name, *inner, field = path.split(".")
        message = made.get(name) or made.setdefault(name, file.message_type.add(name=name))
        for entry in inner:  # of a map
            nested = next((one for one in message.nested_type if one.name == entry), None)
            message = nested or message.nested_type.add(name=entry)
            message.options.map_entry = True
        added = message.field.add(name=field, number=number)
        added.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
        if isinstance(kind, str):
            added.type, added.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{kind}"
        else:
            added.type = kind
    if later:
        for message in made.values():
            message.field.add(name=LATER, number=900, type=FieldDescriptorProto.TYPE_STRING,
                              label=FieldDescriptorProto.LABEL_OPTIONAL)  # fmt: skip
    pool = DescriptorPool()
    pool.Add(file)
    return SimpleNamespace(**{name: GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in made})


def told(message: Any) -> Any:
    """The message with what a later release says beside it."""
    if hasattr(message, LATER):
        setattr(message, LATER, "x")
    return message


@pytest.fixture(params=[False, True], ids=["older", "newer"])
def other(request: pytest.FixtureRequest) -> Any:
    """The messages of the other release."""
    return messages(request.param)


class Caller:
    """A client or daemon of the other release, on a connection of its own."""

    def __init__(self, channel: grpc.Channel, other: Any) -> None:
        self._channel, self.of = channel, other

    def call(self, name: str, /, **values: Any) -> Any:
        """The reply, or what a stream sends first, or all that a stream of files sends."""
        takes, gives, _, streams = RECORDED["calls"][f"{PACKAGE}.{name}"]
        kind = self._channel.unary_stream if streams else self._channel.unary_unary
        method = kind(
            f"/{PACKAGE}.{name.replace('.', '/')}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(self.of, gives.rpartition(".")[2]).FromString,
        )
        reply = method(told(getattr(self.of, takes.rpartition(".")[2])(**values)), timeout=60)
        if not streams:
            return reply
        return list(reply) if name == "Models.Fetch" else next(reply)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("versions")
    made = Service(folder, idle=True)
    for name in ("default", "small"):
        put_model(made.folder, ROOT / "checkpoints" / name, "production")
    made.start()
    yield made
    made.close()


def test_the_service_serves_clients_and_daemons_of_the_release_before_and_after(service: Service, other: Any) -> None:
    with grpc.insecure_channel(f"unix:{service.socket}") as channel:
        caller = Caller(channel, other)
        request = f"r{len(other.Job.DESCRIPTOR.fields)}"
        job = caller.call("Jobs.Submit", request_id=request, config_json=json.dumps(TINY), note="week 14").job
        assert job.state in ("waiting", "running")
        assert job.job in [one.job for one in caller.call("Jobs.List").jobs]
        assert caller.call("Jobs.Watch", job=job.job).job.job == job.job
        assert caller.call("Jobs.Stop", job=job.job).job == job.job

        pointer = caller.call("Models.Follow", name="production", daemon="host-1")
        assert pointer.model == caller.call("Models.Resolve", name="production").model == SECOND
        chunks = caller.call("Models.Fetch", model=pointer.model)
        assert [chunk.file for chunk in chunks if chunk.file] == list(MODEL_FILES)
        caller.call("Models.Report", daemon="host-1", name="production", model=SECOND, figures={"delay": 0.5})
        (daemon,) = caller.call("Models.Fleet").daemons
        assert (daemon.daemon, daemon.model, dict(daemon.figures)) == ("host-1", SECOND, {"delay": 0.5})
        assert caller.call("Models.History", name="production").promotions[-1].model == SECOND
        assert dict(caller.call("Models.Show", model="production").metrics)


class OtherService:
    """A service of the other release, of which a daemon of this one asks models; it may know fewer calls."""

    def __init__(self, socket: Path, other: Any, lacks: tuple[str, ...] = ()) -> None:
        self.model, self.reports, self.of = FIRST, [], other
        handlers = {}
        for name in ("Follow", "Resolve", "Fetch", "Report"):
            takes, _, _, streams = RECORDED["calls"][f"{PACKAGE}.Models.{name}"]
            make = grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
            if name not in lacks:
                handlers[name] = make(
                    getattr(self, name.lower()),
                    request_deserializer=getattr(other, takes.rpartition(".")[2]).FromString,
                    response_serializer=lambda message: told(message).SerializeToString(),
                )
        self.server = grpc.server(ThreadPoolExecutor(8))
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"{PACKAGE}.Models", handlers),))
        self.server.add_insecure_port(f"unix:{socket}")
        self.server.start()

    def follow(self, request: Any, context: Any) -> Iterator[Any]:
        sent = ""
        while context.is_active():
            time.sleep(0.02)
            if sent != self.model:
                sent = self.model
                yield self.resolve(request, context)

    def resolve(self, request: Any, context: Any) -> Any:
        return self.of.Pointer(name=request.name, model=self.model, number=1)

    def fetch(self, request: Any, context: Any) -> Iterator[Any]:
        for name in MODEL_FILES:
            yield self.of.FileChunk(file=name, data=(FOLDERS[request.model] / name).read_bytes())

    def report(self, request: Any, context: Any) -> Any:
        self.reports.append(request)
        return self.of.ReportReply()


@pytest.mark.parametrize("lacks", [(), ("Follow",)], ids=["all calls", "no stream yet"])
def test_a_daemon_follows_a_service_of_the_release_before_and_after(
    tmp_path: Path, other: Any, lacks: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(registry, "POLL_S", 0.1)
    service = OtherService(tmp_path / "s", other, lacks)
    swapped: list[str] = []
    follower = Follower(Address(f"unix:{tmp_path}/s"), "production", "host-1", tmp_path / "models",
                        lambda _folder, sha256: swapped.append(sha256), "0.1.0")  # fmt: skip
    follower.start()
    try:
        wait_for(lambda: swapped == [FIRST])
        service.model = SECOND
        wait_for(lambda: swapped == [FIRST, SECOND])
        wait_for(lambda: service.reports and service.reports[-1].model == SECOND)
        assert service.reports[-1].version == "0.1.0"
        assert not follower.problem
    finally:
        follower.close()
        service.server.stop(0).wait()

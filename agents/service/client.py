"""The public client of the training service: ``with Client() as trainer: trainer.submit(...)``.

Everything returned is plain data, as ``--json`` shows it; everything that goes wrong is a ReinetError.
"""

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message
from pydantic import BaseModel, ConfigDict, Field, field_validator

from reinet.agents.service.blobs import CHUNK_BYTES
from reinet.agents.service.config import default_socket
from reinet.agents.service.text import name as checked_name
from reinet.core import toml_file
from reinet.core.closing import Closing
from reinet.core.errors import ConfigError, ServiceError
from reinet.daemon.client import request_of
from reinet.daemon.registry import TIMEOUT_S, Address, fetch, service_error
from reinet.envs.trace import Trace
from reinet.envs.trace.set_file import called, trace_files
from reinet.proto import trainer_pb2 as pb
from reinet.proto import trainer_pb2_grpc

ADDRESS_VARIABLE = "REINET_TRAINER"
"""The environment's address of the service, where none is given: ``unix:PATH`` or ``HOST:PORT``."""
UPLOAD_S = 3600.0
RETRY_S = 60.0
"""A watch outlives a service that is restarted within so long."""
Data = dict[str, Any]


class Client(Closing):
    """Calls the service at ``address``, by default this user's own; raises ServiceError with what to do.

    ``address`` is ``unix:PATH`` or ``HOST:PORT``; the latter needs ``ca``, ``cert`` and ``key``, files of PEM.
    """

    def __init__(
        self, address: str | None = None, ca: Path | None = None, cert: Path | None = None, key: Path | None = None
    ) -> None:
        target = address or os.environ.get(ADDRESS_VARIABLE) or f"unix:{default_socket()}"
        self._address = Address(target, ca, cert, key)
        self._channel = self._address.channel()
        stubs: Any = trainer_pb2_grpc  # generated code carries no types
        self._jobs, self._models = stubs.JobsStub(self._channel), stubs.ModelsStub(self._channel)

    # --- jobs ---

    def submit(
        self,
        config: Path | Mapping[str, Any],
        traces: Sequence[Path] = (),
        note: str = "",
        licence: str = "",
        parent: str = "",
        told: Callable[[str, int, int], None] = lambda _what, _done, _of: None,
    ) -> Data:
        """Sends the traces that the service lacks, then the job; returns the job.

        ``config`` is a training configuration, as a TOML file or its content; the sets that it names and ``traces``
        (files, folders, set files) go along. ``told`` hears of bytes on their way. Sent again after a break, nothing
        is doubled.
        """
        hint, source = "give a training configuration", str(config) if isinstance(config, Path) else "configuration"
        content = toml_file.read(config, hint) if isinstance(config, Path) else dict(config)
        read = toml_file.check(content, source, _Read, hint).traces
        entries = [*read.sets, *(_Set(path=str(path)) for path in traces)]
        forbidden = [_Set(path=path, role="forbid") for path in read.forbid]
        section = {key: value for key, value in content.get("traces", {}).items() if key not in ("sets", "forbid")}
        if traces and "presets" not in section and not read.sets:
            section["presets"] = []  # who sends recordings wants them learned from, and no generated ones beside
        content["traces"] = section
        config_json = _as_json(content, source)
        sets, found = _sets([*entries, *forbidden], licence)
        request = request_of(
            pb.SubmitRequest,
            request_id=secrets.token_hex(16),
            config_json=config_json,
            traces=sets,
            note=note,
            parent=parent,
        )
        self._upload(found, told)
        return _job(self._submit(request).job)

    def upload(
        self, traces: Sequence[Path], told: Callable[[str, int, int], None] = lambda _what, _done, _of: None
    ) -> list[str]:
        """Sends the traces (files, folders, set files) that the service lacks; returns the sha256 of each that went."""
        found = {trace.sha256: trace for trace in (Trace.load(file) for file in trace_files(traces))}
        return self._upload(found, told)

    def jobs(self) -> list[Data]:
        """Returns the jobs, oldest first."""
        return [_job(job) for job in self._call(self._jobs.List, pb.ListRequest()).jobs]

    def job(self, job: str) -> Data:
        """Returns one job."""
        return _job(self._call(self._jobs.Get, request_of(pb.JobRequest, job=job)))

    def watch(self, job: str, log: bool = False) -> Iterator[tuple[Data, str]]:
        """Yields the job now and whenever it changes, with new lines of its log, until it has ended.

        It goes on over a restart of the service, and with the log where it was.
        """
        broken_s: float | None = None
        log_end = 0
        while True:
            try:
                for reply in self._jobs.Watch(request_of(pb.WatchRequest, job=job, log=log, log_from=log_end)):
                    broken_s, log_end = None, reply.log_end
                    job = reply.job.job or job  # the latest one may be another's by the time of a restart
                    yield _job(reply.job), reply.log
                return
            except grpc.RpcError as error:
                # From the break on: a job that has nothing to say for minutes is watched no less.
                now_s = time.monotonic()
                broken_s = now_s if broken_s is None else broken_s
                if error.code() != grpc.StatusCode.UNAVAILABLE or now_s - broken_s > RETRY_S:
                    raise service_error(self._address, error) from None
                time.sleep(0.5)

    def stop(self, job: str) -> Data:
        """Ends a job after its present iteration; returns it."""
        return _job(self._call(self._jobs.Stop, request_of(pb.JobRequest, job=job)))

    def resume(self, job: str) -> Data:
        """Lets a stopped or failed job go on from its newest checkpoint; returns it."""
        return _job(self._call(self._jobs.Resume, request_of(pb.JobRequest, job=job)))

    # --- models ---

    def models(self) -> list[Data]:
        """Returns the models, oldest first, without configuration and traces."""
        return [_model(model) for model in self._call(self._models.List, pb.ListModelsRequest()).models]

    def model(self, model: str) -> Data:
        """Returns one model with its lineage, by name, sha256 or the beginning of it."""
        return _model(self._call(self._models.Show, request_of(pb.ModelRequest, model=model)))

    def pull(self, model: str, folder: Path) -> Path:
        """Returns the model's folder, fetched below ``folder`` and checked."""
        sha256 = self.model(model)["sha256"]
        try:
            return fetch(self._models, sha256, folder)
        except grpc.RpcError as error:
            raise service_error(self._address, error) from None

    def promote(
        self,
        model: str,
        name: str,
        why: str = "",
        force: bool = False,
        told: Callable[[str], None] = lambda _what: None,
    ) -> Data:
        """Points a name to a model that the gate lets through; returns the line of history.

        ``told`` hears what the gate does meanwhile. Raises ServiceError where the name stays as it was.
        """
        request = request_of(pb.PromoteRequest, model=model, name=name, why=why, force=force)
        try:
            for reply in self._models.Promote(request):
                if reply.HasField("promotion"):
                    return _plain(reply.promotion)
                told(reply.told)
        except grpc.RpcError as error:
            raise service_error(self._address, error) from None
        raise ServiceError("the service ended the promotion without a word; look at `reinet models list`")

    def rollback(self, name: str, why: str = "") -> Data:
        """Points a name to what it pointed to before; returns the line of history."""
        return _plain(self._call(self._models.Rollback, request_of(pb.RollbackRequest, name=name, why=why)))

    def history(self, name: str = "") -> list[Data]:
        """Returns promotions and roll-backs, oldest first."""
        request = request_of(pb.HistoryRequest, name=name)
        return [_plain(line) for line in self._call(self._models.History, request).promotions]

    def fleet(self) -> list[Data]:
        """Returns the daemons that follow names."""
        return [_plain(one) for one in self._call(self._models.Fleet, pb.FleetRequest()).daemons]

    def gc(self, older_than_days: float, dry_run: bool = False) -> Data:
        """Removes models that nothing points to; returns ``removed`` and ``freed_bytes``."""
        request = pb.GcRequest(older_than_s=older_than_days * 86400, dry_run=dry_run)
        return _plain(self._call(self._models.Gc, request))

    def close(self) -> None:
        """Hangs up."""
        self._channel.close()

    def _call(self, method: Any, request: Message) -> Any:
        try:
            return method(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise service_error(self._address, error) from None

    def _submit(self, request: pb.SubmitRequest) -> Any:
        """Submits, again where the connection broke: the same request is accepted once."""
        for attempt in (1, 2, 3):
            try:
                return self._jobs.Submit(request, timeout=TIMEOUT_S)
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.INVALID_ARGUMENT:  # a ConfigError of the service
                    raise ConfigError(error.details() or "the configuration is refused") from None
                if error.code() != grpc.StatusCode.UNAVAILABLE or attempt == 3:
                    raise service_error(self._address, error) from None
                time.sleep(attempt)
        raise AssertionError("the last attempt returns or raises")

    def _upload(self, traces: Mapping[str, Trace], told: Callable[[str, int, int], None]) -> list[str]:
        if not traces:
            return []
        missing = list(self._call(self._jobs.Missing, pb.MissingRequest(sha256=list(traces))).sha256)
        total, done = sum(len(traces[sha256].canonical_text) for sha256 in missing), 0
        for sha256 in missing:
            trace = traces[sha256]
            told(trace.name, done, total)
            try:
                self._jobs.Upload(_parts(trace), timeout=UPLOAD_S)
            except grpc.RpcError as error:
                raise service_error(self._address, error) from None
            done += len(trace.canonical_text)
            told(trace.name, done, total)
        return missing


def _parts(trace: Trace) -> Iterator[pb.UploadRequest]:
    data = trace.canonical_text
    yield pb.UploadRequest(header=pb.UploadHeader(sha256=trace.sha256, size_bytes=len(data)))
    for start in range(0, len(data), CHUNK_BYTES):
        yield pb.UploadRequest(chunk=data[start : start + CHUNK_BYTES])


class _Set(BaseModel):
    """A set of traces as a configuration names it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(min_length=1, description="a trace file, a folder of them or a set file")
    weight: float = Field(default=1.0, gt=0)  # the service takes 0, which a message that says nothing has, for 1
    role: str | None = None


class _Traces(BaseModel):
    model_config = ConfigDict(frozen=True)

    sets: list[_Set] = []
    forbid: list[str] = []

    _a_path_alone = field_validator("sets", mode="before")(toml_file.paths_as_tables)


class _Read(BaseModel):
    """What is read here of a configuration; all else is checked by the service, which may be of a later release."""

    model_config = ConfigDict(frozen=True)

    traces: _Traces = _Traces()


def _as_json(content: Data, source: str) -> str:
    try:
        return json.dumps(content)
    except (TypeError, ValueError, RecursionError) as error:  # TOML has dates and times
        raise ConfigError(f"{source}: holds what no training configuration does ({error}); take it out") from None


def _sets(entries: Sequence[_Set], licence: str) -> tuple[list[pb.TraceSet], dict[str, Trace]]:
    """Returns what the configuration's sets are called on the service, and their traces by content."""
    sets: list[pb.TraceSet] = []
    found: dict[str, Trace] = {}
    for entry in entries:
        path = Path(os.path.expandvars(entry.path))
        traces = [Trace.load(file) for file in trace_files([path])]
        name, role = called(path)
        files: dict[str, str] = {}
        for trace in traces:
            files[_unlike(_as_name(trace.name), files)] = trace.sha256
            found[trace.sha256] = trace
        sets.append(request_of(
            pb.TraceSet, name=_unlike(_as_name(name), [one.name for one in sets]), role=entry.role or role or "",
            licence=licence, weight=entry.weight,
            files=[pb.TraceFile(name=file, sha256=sha256) for file, sha256 in files.items()],
        ))  # fmt: skip
    return sets, found


def _as_name(text: str) -> str:
    """Returns a file's name with what the service takes no name with replaced."""
    kept = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in text).lstrip("._-")
    return checked_name("trace", kept[:60] or "traces")


def _unlike(name: str, others: Mapping[str, str] | Sequence[str]) -> str:
    """Returns the name, with a number behind it where it is taken."""
    return next(one for one in (name, *(f"{name}-{n}"[-64:] for n in range(2, 10_000))) if one not in others)


def _plain(message: Message) -> Data:
    """Returns a message as data, every field of it."""
    found: Data = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value = dict(value)
        elif field.is_repeated:
            value = [_plain(one) if isinstance(one, Message) else one for one in value]
        elif isinstance(value, Message):
            value = _plain(value)
        found[field.name] = value
    return found


def _job(message: pb.Job) -> Data:
    """Returns a job as data; what is not known is None."""
    found = _plain(message)
    progress = found.pop("progress")
    if progress["left_s"] < 0:
        progress["left_s"] = None
    return {**found, **progress, "ended_s": found["ended_s"] or None}


def _model(message: pb.Model) -> Data:
    found = _plain(message)
    found["config"] = json.loads(found.pop("config_json") or "null")
    return found

"""A client of the registry of models, as a daemon needs it: what a name points to, its files, checked, and reports.

``Follower`` calls back with every model that a name points to, once it is on the disk, its digest and schema right.
The service being away changes nothing: the daemon keeps what it runs, and asks again with growing pauses.
"""

import random
import re
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from reinet.agents.model.artifact import MAX_FILE_BYTES, MODEL_FILES, load_artifact, write_folder
from reinet.core.disk import durable
from reinet.core.errors import ModelError, ReinetError, ServiceError
from reinet.daemon.client import CHANNEL_OPTIONS
from reinet.daemon.endpoint import grpc_target
from reinet.proto import trainer_pb2 as pb
from reinet.proto import trainer_pb2_grpc

TIMEOUT_S = 10.0
"""Every call but a stream is answered from memory and a small file."""
FETCH_S = 60.0
"""A model has some hundred kilobytes, the largest a few megabytes."""
FIRST_PAUSE_S = 0.5
MOST_PAUSE_S = 60.0
"""After so many failures a daemon asks once a minute, a little before or after: a thousand do not come at once."""
POLL_S = 20.0
"""A service that answers and holds no stream is asked this often: as often as a stream gives a sign of life, so that a
promotion is heard of within the time that a fleet's list is fresh, and a thousand daemons ask fifty times a second."""
SILENCE_S = 60.0
"""The service gives a sign of life every 20 s; a stream that is silent for three is given up."""
MAX_MESSAGE_BYTES = 16 * 1024 * 1024

Swap = Callable[[Path, str], None]
"""Takes a checked model folder and its sha256 into use; raises ReinetError where it cannot."""


@dataclass(frozen=True)
class Address:
    """Where a service listens: ``unix:PATH``, or ``HOST:PORT`` with the files of mutual TLS."""

    target: str
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def channel(self) -> grpc.Channel:
        """Returns a channel; raises ServiceError for an address that makes no sense."""
        options = [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            *CHANNEL_OPTIONS,
            ("grpc.max_reconnect_backoff_ms", 5000),
        ]
        if self.target.startswith("unix:"):
            path = Path(self.target.removeprefix("unix:")).absolute()
            return grpc.insecure_channel(grpc_target(path), options=options)
        if self.ca is None or self.cert is None or self.key is None:
            raise ServiceError(
                f"service {self.target}: over TCP it asks for a certificate; give --ca, --cert and --key"
            )
        ca, cert, key = pem_files(self.ca, self.cert, self.key)
        return grpc.secure_channel(self.target, grpc.ssl_channel_credentials(ca, key, cert), options=options)


def pem_files(ca: Path, cert: Path, key: Path) -> tuple[bytes, bytes, bytes]:
    """Returns the content of the files of mutual TLS; raises ServiceError naming what is wrong with which.

    gRPC tells a file that is none from a service that is away, or an address that is taken, in its own log alone.
    """
    try:
        content = ca.read_bytes(), cert.read_bytes(), key.read_bytes()
    except OSError as error:
        raise ServiceError(f"{error.filename}: {error.strerror}; name a PEM file") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError:
        raise ServiceError(f"{ca}: holds no certificate; name a PEM file with that of who signs the others'") from None
    try:
        context.load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        raise ServiceError(
            f"{cert} and {key}: no certificate with its own key ({error.reason or 'no PEM'}); name two PEM files that "
            "belong together, the key without a password"
        ) from None
    return content


def stub_of(channel: grpc.Channel) -> Any:
    """Returns what calls ``Models`` over a channel."""
    make_stub: Any = trainer_pb2_grpc.ModelsStub  # generated code carries no types
    return make_stub(channel)


def service_error(address: Address, error: grpc.RpcError) -> ServiceError:
    """Returns what a failed call says, as an error of ours."""
    code, details = error.code(), error.details() or "no reason given"
    if code == grpc.StatusCode.UNAVAILABLE and "handshake failed" in details:
        why = details.rpartition("OPENSSL_internal:")[2][:200]
        return ServiceError(
            f"the certificate of what listens at {address.target} is refused ({why}): name it by a name that its "
            "certificate has, and as `ca` the certificate of who signed that"
        )
    if code == grpc.StatusCode.UNAVAILABLE and details.endswith("Socket closed") and address.ca is not None:
        return ServiceError(
            f"what listens at {address.target} hung up: it is ending, or refuses this certificate; is that one signed "
            "by whom the service's `ca` names, and not expired?"
        )
    if code == grpc.StatusCode.UNAVAILABLE:
        return ServiceError(
            f"no training service answers at {address.target}: start one with `reinet trainer CONFIG`, or name its "
            f"address ({details.rpartition('error: ')[2][:200]})"  # gRPC's own words end in the system's
        )
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServiceError(
            f"training service at {address.target}: no answer in time, so it stands still, has no CPU or too many "
            "connections, or the path is slow. If this lasts, restart it: nothing that it accepted is lost"
        )
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return ServiceError(
            f"what listens at {address.target} does not know this call ({details[:200]}, {code.name}): it is no "
            "training service, or one of an earlier version; name another address, or use that version of reinet"
        )
    if code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT):
        return ServiceError(details)
    return ServiceError(f"training service at {address.target}: {details[:500]} ({code.name})")


def fetch(stub: Any, model: str, folder: Path, within_s: float | None = None) -> Path:
    """Returns the folder of a model, fetched into ``folder`` under its sha256 and checked, or there already.

    ``within_s`` is how long that may take, None = ``FETCH_S``. Raises ModelError for what is not the model,
    grpc.RpcError, and OSError where it cannot be written.
    """
    if not re.fullmatch(r"[0-9a-f]{64}", model):
        raise ModelError(f"{model[:64]!r} is no sha256 of a model; the service is of another kind or version")
    place = folder / model
    with suppress(ModelError):
        load_artifact(place, model)
        return place
    chunks = stub.Fetch(pb.ModelRequest(model=model), timeout=FETCH_S if within_s is None else within_s)
    write_folder(place, _received(chunks), check=lambda made: load_artifact(made, model))
    return place


def _received(chunks: Any) -> dict[str, bytes]:
    """Returns the files of a stream; only a model's, each within its limit, whatever the service sends."""
    content: dict[str, bytearray] = {}
    current: bytearray | None = None
    for chunk in chunks:
        if chunk.file:
            if chunk.file not in MODEL_FILES or chunk.file in content:
                raise ModelError(f"the service sent {chunk.file[:64]!r}, which is no file of a model, or twice")
            current = content.setdefault(chunk.file, bytearray())
        if current is None:
            raise ModelError("the service sent bytes of no file")
        current += chunk.data
        if len(current) > MAX_FILE_BYTES:
            raise ModelError(f"the service sent a file of more than {MAX_FILE_BYTES} bytes; no model has that")
    if set(content) != set(MODEL_FILES):
        raise ModelError("the service sent no whole model")
    return {name: bytes(data) for name, data in content.items()}


def last_known(folder: Path, name: str) -> Path | None:
    """Returns the model in a folder that a name pointed to when the service was last heard of; None = never."""
    with suppress(OSError, ReinetError, ValueError):  # a damaged file is no text, or no name of a folder
        model = _note_of(folder, name).read_text().strip()
        load_artifact(folder / model, model)
        return folder / model
    return None


def _note_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.sha256"


class Follower:
    """Follows a name in a thread of its own, from ``start`` to ``close``."""

    def __init__(
        self,
        address: Address,
        name: str,
        daemon: str,
        folder: Path,
        swap: Swap,
        version: str = "",
        figures: Callable[[], Mapping[str, float]] = dict,
        running: str = "",
    ) -> None:
        self._address, self._name, self._daemon, self._folder = address, name, daemon, folder
        self._swap, self._version, self._figures = swap, version, figures
        self._stop = threading.Event()
        self._call: Any = None
        self._thread = threading.Thread(target=self._run, name="registry", daemon=True)
        self._remembered = ""
        self._heard = False  # whether the service was, since it was asked last
        self.model = running
        """What was swapped in last, as far as is known, at first what ran already."""
        self._sure = True
        """Whether that is what decides: a swap whose answer came too late may have taken place all the same."""
        self.problem = ""
        """Why that is not what the name points to, as far as is known."""

    def start(self) -> None:
        """Begins to follow."""
        self._thread.start()

    def close(self) -> None:
        """Ends; a swap under way is waited for."""
        self._stop.set()
        if self._call is not None:
            self._call.cancel()
        self._thread.join(2 * TIMEOUT_S)

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._stop.is_set():
            channel, polled, self._heard = None, False, False
            try:
                channel = self._address.channel()
                polled = self._listen(stub_of(channel))
            except grpc.RpcError as error:
                self.problem = str(service_error(self._address, error))[:500]
            except (ReinetError, OSError) as error:
                self.problem = str(error)[:500]
            finally:
                if channel is not None:
                    channel.close()
            if self._heard:  # however it ended then
                pause_s = FIRST_PAUSE_S
            self._stop.wait((POLL_S if polled else pause_s) * random.uniform(0.5, 1.5))
            pause_s = FIRST_PAUSE_S if polled else min(2 * pause_s, MOST_PAUSE_S)

    def _listen(self, stub: Any) -> bool:
        """Takes what comes until the stream ends or falls silent; returns whether it came by being asked."""
        polled = False
        self._call = stub.Follow(pb.FollowRequest(name=self._name, daemon=self._daemon))
        watchdog = _Watchdog(SILENCE_S, self._call.cancel)
        try:
            for pointer in self._call:
                self._heard = True
                watchdog.feed()
                if self._stop.is_set():
                    break
                self._take(stub, pointer)
        except grpc.RpcError as error:
            # A service that holds no more streams, or a path that cuts them: ask once.
            if self._stop.is_set() or error.code() == grpc.StatusCode.UNAVAILABLE:
                raise
            self._take(stub, stub.Resolve(pb.ResolveRequest(name=self._name), timeout=TIMEOUT_S))
            polled = self._heard = True
        finally:
            watchdog.close()
            self._call.cancel()
        return polled

    def _take(self, stub: Any, pointer: pb.Pointer) -> None:
        if pointer.model and (pointer.model != self.model or not self._sure):
            try:
                place = fetch(stub, pointer.model, self._folder)
                self._swap(place, pointer.model)
                self.model, self.problem, self._sure = pointer.model, "", True
            except grpc.RpcError as error:
                self.problem = str(service_error(self._address, error))[:500]
            except Exception as error:  # whatever is wrong with what the service sent, the daemon goes on to follow
                self.problem = (str(error) if isinstance(error, ReinetError | OSError) else repr(error))[:500]
                # Whatever the name points to next is asked for, the model before it too: what decides already is left.
                self._sure = self._sure and not isinstance(error, TimeoutError)
        else:  # of a service that is back without its database as well: that it was away is over
            self.problem = "" if pointer.model else f"the name {self._name!r} points to no model, so this one stays"
        if pointer.model and pointer.model == self.model != self._remembered:
            try:
                self._remember()
            except OSError as error:  # a full disk: what runs goes on, and the fleet's list says why a start may not
                self.problem = str(error)[:500]
        figures: dict[str, float] = {}
        silence = ""
        try:
            figures = dict(self._figures())
        except (ReinetError, OSError) as error:  # whoever knows them hangs, or is being started anew
            silence = str(error)
        report = pb.ReportRequest(daemon=self._daemon, name=self._name, model=self.model, version=self._version,
                                  problem=_one_line(self.problem or silence), figures=figures)  # fmt: skip
        with suppress(grpc.RpcError):
            stub.Report(report, timeout=TIMEOUT_S)

    def _remember(self) -> None:
        durable.write(_note_of(self._folder, self._name), f"{self.model}\n".encode())
        self._remembered = self.model


class _Watchdog:
    """Calls back where it is not fed for a while."""

    def __init__(self, seconds: float, bark: Callable[[], object]) -> None:
        self._seconds, self._bark = seconds, bark
        self._timer: threading.Timer | None = None
        self.feed()

    def feed(self) -> None:
        self.close()
        self._timer = threading.Timer(self._seconds, self._bark)
        self._timer.daemon = True
        self._timer.start()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)[:500]

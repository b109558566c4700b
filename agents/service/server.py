"""The service as a process: state opened, what a killed one left put right, then gRPC until a signal says to end.

One event loop serves all clients; the supervisor steps in a thread beside it.
"""

import asyncio
import importlib.metadata
import signal
import socket as sockets
import sqlite3
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from reinet.agents.service.blobs import CHUNK_BYTES, Blobs
from reinet.agents.service.config import TrainerConfig
from reinet.agents.service.database import Database
from reinet.agents.service.fleet import Fleet, Flows
from reinet.agents.service.identity import Callers
from reinet.agents.service.jobs import Jobs
from reinet.agents.service.jobs_servicer import JobsServicer
from reinet.agents.service.models_servicer import ModelsServicer
from reinet.agents.service.registry import Registry
from reinet.agents.service.running.runners import ProcessRunner, Runner
from reinet.agents.service.running.supervisor import Supervisor
from reinet.core.disk import durable
from reinet.core.errors import ConfigError, DaemonError, ReinetError, ServiceError
from reinet.daemon.endpoint import listen_privately
from reinet.daemon.processes.claim import Purpose, SocketClaim
from reinet.daemon.processes.descriptors import allow_descriptors
from reinet.daemon.registry import pem_files
from reinet.proto import trainer_pb2, trainer_pb2_grpc

STEP_S = 0.3
"""The supervisor looks so often; a job waits no longer for what follows."""
TROUBLE_S = 5.0
"""So long it waits before it tries again what could not be done."""
FLUSH_S = 5.0
"""What daemons said is written down so often: a thousand of them would have the disk do nothing else."""
MOST_CALLS = 6000
"""So many calls at once, most of them daemons that follow; each is a coroutine of some kilobytes."""
MAX_REQUEST_BYTES = 2 * 1024 * 1024
"""A job of 4096 traces names them in 500 KB; an upload's chunk has 256 KiB."""
assert MAX_REQUEST_BYTES > CHUNK_BYTES
LOOKAHEAD_BYTES = 1024 * 1024
"""So much of an upload arrives before it is asked for: 20 MB/s over a path of 50 ms."""
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.max_metadata_size", 8192),
    ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
    ("grpc.http2.bdp_probe", 0),  # else it grows with a path's rate, for every upload that waits its turn
    ("grpc.keepalive_time_ms", 60_000),  # a client that is gone is noticed within a minute and a bit
    ("grpc.keepalive_timeout_ms", 20_000),
]
GRACE_S = 1.0
SERVICES = ("Jobs", "Models")
FOLDER = Purpose("lock of the folder", "trainer.folder", sockets.SOCK_STREAM, 0o700)
SOCKET = Purpose("socket", "trainer.socket", sockets.SOCK_STREAM, 0o700)

health_aio: Any = health.aio  # type: ignore[attr-defined]  # which the stubs do not know

log = structlog.get_logger("reinet.trainer")


def serve(config: TrainerConfig, runner: Runner | None = None) -> None:
    """Runs the service until SIGTERM, SIGINT or SIGHUP; raises ServiceError where it cannot start,
    and ConfigError where its folder cannot be one.

    ``runner`` stands in for the configuration's. What runs is told to end after its iteration, and goes on at the next
    start.
    """
    allow_descriptors()
    with ExitStack() as stack:
        try:
            config.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            why = "is no folder" if isinstance(error, FileExistsError) else error.strerror
            raise ConfigError(
                f"trainer.folder = {config.folder}: {why}; set it to a folder of the service's own"
            ) from None
        try:
            # One service for each folder and each socket: both claims are locks that go with the process.
            stack.enter_context(SocketClaim(config.folder / "service.sock", FOLDER))
            claim = stack.enter_context(SocketClaim(config.socket, SOCKET))
        except (DaemonError, OSError) as error:
            raise ServiceError(str(error).replace("another daemon", "another service")) from None
        database = Database(config.folder)
        stack.callback(database.close)
        runner = runner or make_runner(config)
        stack.callback(runner.close)
        asyncio.run(_serve(config, claim.path, database, runner))
    log.info("stopped")


def make_runner(config: TrainerConfig) -> Runner:
    """Returns what runs jobs."""
    if config.runner == "process":
        return ProcessRunner(config.folder)
    from reinet.agents.service.running.ray_runner import RayRunner  # Ray takes a second to import

    return RayRunner(config.folder, config.ray_address, config.ray_port, config.jobs, config.workers)


async def _serve(config: TrainerConfig, socket: Path, database: Database, runner: Runner) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stopped.set)
    min_free_bytes = config.min_free_mb * 1_000_000
    blobs = Blobs(config.folder, database, min_free_bytes)
    flows = Flows(config.folder, min_free_bytes)
    jobs = Jobs(
        config.folder, database, blobs,
        min_free_bytes=min_free_bytes, most_workers=config.workers, code_version=code_version(),
    )  # fmt: skip
    registry = Registry(config.folder, database)
    durable.clear_staged(config.folder / "staged")
    registry.tell_of_unknown()
    callers = Callers(config)
    server = grpc.aio.server(maximum_concurrent_rpcs=MOST_CALLS, options=OPTIONS)
    add: Any = trainer_pb2_grpc  # generated code carries no types
    add.add_JobsServicer_to_server(JobsServicer(jobs, blobs, flows, callers), server)
    fleet = Fleet(database)
    add.add_ModelsServicer_to_server(ModelsServicer(config.folder, registry, fleet, config.gate, callers), server)
    status = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    names = [trainer_pb2.DESCRIPTOR.services_by_name[name].full_name for name in SERVICES]
    reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    _listen_unix(server, socket)
    port = _listen_tls(server, config)
    await server.start()
    for name in ("", *names):
        await status.set(name, health_pb2.HealthCheckResponse.SERVING)
    log.info("serving", socket=str(socket), listen=port, folder=str(config.folder), runner=config.runner)
    supervisor = Supervisor(jobs, registry, runner, config.jobs, callers.quota_of)
    try:
        await _look_after(supervisor, fleet, stopped)
    finally:
        await status.enter_graceful_shutdown()
        await server.stop(GRACE_S)
        # The calls that it called off end what they began, such as the gate's process. Cancelled once more, with the
        # loop, which ends next, they would leave that, and tracebacks in the log.
        if left := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(left, timeout=GRACE_S)
        await fleet.flush()


async def _look_after(supervisor: Supervisor, fleet: Fleet, stopped: asyncio.Event) -> None:
    """Has the supervisor step, and what daemons said written down, until the service is to end."""
    await asyncio.to_thread(supervisor.prepare)
    while not stopped.is_set():
        try:
            await asyncio.to_thread(supervisor.step)
            await fleet.flush(FLUSH_S)
        except (ReinetError, OSError, sqlite3.Error) as error:  # a full disk: it may be mended while we serve
            log.error("the service cannot look after its jobs", problem=str(error))
            await asyncio.sleep(TROUBLE_S)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stopped.wait(), STEP_S)


def _listen_unix(server: Any, socket: Path) -> None:
    try:
        listen_privately(server, socket)
    except (OSError, RuntimeError) as error:
        raise ServiceError(f"socket {socket}: {error}; set trainer.socket to another path") from None


def _listen_tls(server: Any, config: TrainerConfig) -> str | None:
    """Listens for clients with certificates; returns where, None where nobody asked for it."""
    if config.listen is None or config.tls is None:
        return None
    try:
        ca, cert, key = pem_files(config.tls.ca, config.tls.cert, config.tls.key)
    except ServiceError as error:
        raise ConfigError(f"trainer.tls: {error}") from None
    credentials = grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)
    try:
        server.add_secure_port(config.listen, credentials)
    except RuntimeError as error:
        raise ServiceError(
            f"trainer.listen = {config.listen}: {error}; is another service there, and is it an address of this host?"
        ) from None
    return config.listen


def code_version() -> str:
    """Returns the version that trains: the checkout's commit where there is one, else the package's."""
    with suppress(OSError, subprocess.SubprocessError):
        here = Path(__file__).resolve().parents[2]
        if (here / ".git").exists():
            command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
            found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
            if found.returncode == 0:
                return found.stdout.strip()
    return importlib.metadata.version("reinet")

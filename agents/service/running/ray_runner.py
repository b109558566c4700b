"""Workers through Ray's own job submission: on a cluster by address, or under a head that the service starts.

The head listens on loopback, asks for a token that lies in the service's folder (0600), and is found again by a mark in
its processes' environment: it outlives a service that is killed, and goes with one that ends.
"""

import hashlib
import importlib.util
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from reinet.agents.service.running.progress import DISK_FULL
from reinet.agents.service.running.ray_left import command_of, open_files
from reinet.agents.service.running.runners import END_GRACE_S, State, at_work, worker_command
from reinet.core.errors import ServiceError

MARK = "REINET_TRAINER_RAY"
START_S = 120.0
"""A head takes 15 s on two idle cores."""
OBJECT_STORE_BYTES = 512 * 1024 * 1024
"""An iteration's experience is some tens of megabytes; Ray's default is a third of the machine."""
NAPS_S = 0.2
UNDER_WAY = ("PENDING", "RUNNING")
ADDRESSES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
"""Of whoever trains by hand, as a rule: where one is set, Ray's client takes it in place of the address it is given."""
SHELLS_SIGNAL = 128
"""Ray starts workers through a shell: statuses from here on are its way to say that a signal ended them."""

log = structlog.get_logger("reinet.trainer")


class RayRunner:
    """Jobs of Ray, one for each attempt: submission id ``JOB-ATTEMPT``."""

    def __init__(self, folder: Path, address: str | None, port: int, at_once: int, workers: int) -> None:
        if importlib.util.find_spec("aiohttp") is None:
            raise ServiceError(
                "Ray's job submission needs its dashboard: pip install 'reinet[trainer]', or set trainer.runner = "
                '"process"'
            )
        self._own = address is None
        self._address = address or f"http://127.0.0.1:{port}"
        self._port, self._at_once, self._workers = port, at_once, workers
        self._folder = folder / "ray"
        self._mark = f"{MARK}={self._folder}".encode()
        self._client: Any = None
        for name in ADDRESSES:
            os.environ.pop(name, None)
        if self._own:
            self._folder.mkdir(exist_ok=True, mode=0o700)
            # Ray's own clients in this process look here.
            os.environ["RAY_AUTH_MODE"] = "token"
            os.environ["RAY_AUTH_TOKEN_PATH"] = str(self._token())

    def prepare(self) -> None:
        """Starts the head, or finds the cluster: the first job is to wait for neither."""
        self._connected()

    def start(self, job: str, attempt: int, folder: Path) -> None:
        """Submits a worker, unless Ray has it already; raises ServiceError where Ray does not take it."""
        client = self._connected()
        if self._known(job, attempt) is not None:
            return
        try:
            client.submit_job(
                entrypoint=_entrypoint(folder),
                submission_id=_id(job, attempt),
                entrypoint_num_cpus=0,  # the learner's own; its gatherers ask for theirs
            )
        except Exception as error:  # Ray raises RuntimeError for everything
            raise ServiceError(f"Ray does not take the job: {error}") from None

    def state(self, job: str, attempt: int) -> State:
        """Returns what became of an attempt; of one that an earlier head knew, nothing is known."""
        known = self._known(job, attempt)
        if known is None:
            return "gone"
        if known.status.value in UNDER_WAY:
            return "running"
        if known.status.value != "FAILED":
            return "gone"
        code = known.driver_exit_code  # None = what runs the worker for Ray died, and with it the worker
        if code == DISK_FULL:
            return "full"
        return "failed" if code is not None and 0 < code < SHELLS_SIGNAL else "killed"

    def kill(self, job: str, attempt: int, folder: Path) -> None:
        """Ends a worker."""
        with suppress(Exception):  # it has ended, or the head has
            self._connected().stop_job(_id(job, attempt))

    def close(self) -> None:
        """Tells the workers of this service to end, waits a moment, and ends the head that it started."""
        places = list((self._folder.parent / "jobs").glob("*"))
        if self._client is None and any(map(at_work, places)):
            self._client = self._connect()  # an earlier service submitted them, and nobody had to ask yet
        if self._client is not None:
            with suppress(Exception):  # Ray is away, and its workers see that themselves
                self._stop_all(places)
            end_s = time.monotonic() + END_GRACE_S
            while time.monotonic() < end_s and any(map(at_work, places)):
                time.sleep(NAPS_S)
        if self._own:
            self._end_head()

    def _stop_all(self, places: Sequence[Path]) -> None:
        """Tells what runs on the cluster for this service's folder to end, also what an earlier service submitted."""
        ours = {_entrypoint(place) for place in places}
        for one in self._client.list_jobs():
            if one.entrypoint in ours and one.status.value in UNDER_WAY:
                self._client.stop_job(one.submission_id)

    def _known(self, job: str, attempt: int) -> Any:
        """Returns what Ray says of an attempt, None where it knows none. Raises ServiceError while Ray is away."""
        client = self._connected()
        try:
            return client.get_job_info(_id(job, attempt))
        except Exception as error:
            if isinstance(error, RuntimeError) and "does not exist" in str(error):
                return None
            self._client = None
            raise ServiceError(f"Ray at {self._address} does not answer: {error}") from None

    def _connected(self) -> Any:
        if self._client is None:
            self._client = self._connect() or (self._start_head() if self._own else None)
            if self._client is None:
                raise ServiceError(f"no Ray answers at {self._address}; start it, or change trainer.ray_address")
        return self._client

    def _connect(self) -> Any:
        if self._own and not any(_has(pid, self._mark) for pid in _others()):
            return None  # whatever listens at the port: other Rays have it by default too, and some ask for no token
        from ray.job_submission import JobSubmissionClient

        try:
            return JobSubmissionClient(self._address)
        except Exception:  # ConnectionError, and what its HTTP client raises
            return None

    def _start_head(self) -> Any:
        self._end_head()  # what is left of one that died: a worker without a head never ends
        if _is_taken(self._port):
            raise ServiceError(
                f"another program, as another Ray, listens at {self._address}, where the service's own Ray has its "
                "job port: set trainer.ray_port to one that is free"
            )
        place = _short_folder(self._folder)
        command = [
            str(Path(sys.executable).with_name("ray")), "start", "--head", "--node-ip-address=127.0.0.1", "--port=0",
            "--dashboard-host=127.0.0.1", f"--dashboard-port={self._port}", "--include-dashboard=true",
            f"--ray-client-server-port={_free_port()}",
            # A port that was free a moment ago may not be, and a head whose agent found its port taken takes no job.
            "--dashboard-agent-listen-port=0",
            f"--num-cpus={max(self._workers, 1) * self._at_once}", f"--temp-dir={place}",
            f"--object-store-memory={OBJECT_STORE_BYTES}", "--disable-usage-stats",
        ]  # fmt: skip
        # Its dashboard's server of forks has a socket in a folder of TMPDIR's, and would leave it there: this one goes
        # with the head (``_end_head``).
        env = {**os.environ, MARK: str(self._folder), "TMPDIR": str(place.parent), "RAY_enable_worker_prestart": "0"}
        log.info("starting Ray", address=self._address, folder=str(place))
        with (self._folder / "start.log").open("wb") as out:
            try:
                done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                      start_new_session=True, timeout=START_S, check=False)  # fmt: skip
            except (OSError, subprocess.TimeoutExpired) as error:
                self._end_head()
                raise ServiceError(f"Ray did not start: {error}; see {out.name}") from None
        if done.returncode:
            self._end_head()
            raise ServiceError(f"Ray did not start (status {done.returncode}); see {self._folder / 'start.log'}, or "
                               'set trainer.runner = "process"')  # fmt: skip
        end_s = time.monotonic() + START_S
        while time.monotonic() < end_s:
            if (client := self._connect()) is not None:
                return client
            time.sleep(NAPS_S)
        raise ServiceError(f"Ray started and does not answer at {self._address}; see {self._folder / 'start.log'}")

    def _end_head(self) -> None:
        """Ends every process that carries this service's mark, and their sessions. Ray's agents write their names over
        the mark, and outlive a head that was killed: they are known by its files. No other Ray of the host is touched.
        """
        place = f"{_short_name(self._folder)}/"
        for _ in range(50):  # what they start meanwhile carries it too
            pids = _others()
            ours = {pid for pid in pids if _has(pid, self._mark) or _is_agent(pid, place)}
            sessions = {_session(pid) for pid in ours} - {None, os.getsid(0)}
            found = [pid for pid in pids if pid in ours or _session(pid) in sessions]
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not found:
                shutil.rmtree(_short_name(self._folder), ignore_errors=True)
                return
            time.sleep(0.1)

    def _token(self) -> Path:
        path = self._folder / "token"
        with suppress(FileExistsError):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(fd, secrets.token_hex(32).encode())
            os.close(fd)
        return path


def _entrypoint(folder: Path) -> str:
    return shlex.join(worker_command(folder))


def _id(job: str, attempt: int) -> str:
    return f"{job}-{attempt}"


def _others() -> list[int]:
    """Returns the pids of the host's processes without this one's."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid != os.getpid()]


def _has(pid: int, mark: bytes) -> bool:
    """Returns whether a process of ours has the mark in its environment."""
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _is_agent(pid: int, folder: str) -> bool:
    """Returns whether a process goes by a name of Ray's and has a file of the folder open. Who only reads a log there
    has another name."""
    process = Path(f"/proc/{pid}")
    return command_of(process).startswith("ray::") and any(path.startswith(folder) for path in open_files(process))


def _session(pid: int) -> int | None:
    """Returns the session that a process is in, None once it has ended."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _is_taken(port: int) -> bool:
    """Returns whether somebody listens at a port of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    """Returns a port of loopback that nobody listens at now, for Ray's server of clients: it takes no 0."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def _short_name(folder: Path) -> Path:
    return Path("/tmp") / f"reinet-ray-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def _short_folder(folder: Path) -> Path:
    """Returns a folder with a short path: Ray's sockets lie some 70 characters below it, and 107 are all there are."""
    short = _short_name(folder)
    short.mkdir(mode=0o700, exist_ok=True)
    found = short.lstat()
    if found.st_uid != os.geteuid() or short.is_symlink() or found.st_mode & 0o077:
        raise ServiceError(f"{short}: is another user's, or others may use it; remove it")
    return short / "r"  # Ray lets everyone write there; nobody gets there

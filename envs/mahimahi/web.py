"""A real web server behind an emulated link, and curl as its client: objects, fresh or over a connection kept alive.

The server, nginx, runs where the sender does otherwise: outside the shells, in the cgroup that a shim may watch. curl
runs inside the shells::

    nginx (cgroup) -> [ mm-delay mRTT/2 -> [ mm-link queue + trace -> curl ] ]

nginx cannot choose a congestion control and its namespace has no default of its own, so the route to the client says
which (``ip route ... congctl``). Pauses are transfers too: between two objects curl reads a pipe into which somebody
writes nothing for so long, and keeps its connection meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reinet.core.closing import Closing
from reinet.envs.link.metrics import compute, first_data_ms
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.link import DRAIN_MS, shell_command
from reinet.envs.mahimahi.log import parse_log
from reinet.envs.mahimahi.namespace import BIN, LINK_USER, TRACES, USER_FILES, LinkNamespace
from reinet.envs.mahimahi.process import Child, find_program
from reinet.envs.mahimahi.spec import downlink_ms, require_emulated, trace_files
from reinet.envs.mahimahi.validity import Sleeper, judge

FloatArray = npt.NDArray[np.float64]

PROGRAMS = ("nginx", "curl", "ip")
PORT = 8080
PIPE = f"{USER_FILES}/pause"
BREATH_S = 0.02
"""After a pause the pipe's writer waits so long before it opens it again, so that curl sees the end."""

SAY = (
    r'{"event": "fetched", "total_s": %{time_total}, "bytes": %{size_download}, "code": "%{http_code}", '
    r'"connects": %{num_connects}, "scheme": "%{scheme}"}\n'
)


def nginx_config(folder: str, root: str, listen: str) -> str:
    """Returns nginx's configuration for one process that serves the files of ``root``: Debian's defaults where they say
    something of transfers, and no file outside ``folder``."""
    return f"""
daemon off;
master_process off;
pid {folder}/nginx.pid;
events {{ worker_connections 256; }}
http {{
  access_log off;
  sendfile on;
  keepalive_timeout 3600;
  keepalive_requests 1000000;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{ listen {listen}; root {root}; }}
}}
"""


@dataclass(frozen=True)
class WebRun:
    """The objects of one connection, and whether they can be believed."""

    took_ms: FloatArray
    """(K,), curl's time_total of each: from the request, or the connection's first SYN, to the last byte."""
    complete: bool
    qdelay_ms: FloatArray
    """(P,), the time in the bottleneck's queue of every packet that left it, of the server's."""
    invalid_reason: str | None


class WebLink(Closing):
    """nginx and curl over an emulated path; ``start``, ``fetch`` until ``finished``, ``stop``, any number of times.

    ``cgroup``: a cgroup v2 folder to make for the server. ``sizes_bytes``: the objects it has. Every start has a
    network of its own, so that no metrics of earlier connections are left. Raises LinkError.
    """

    def __init__(self, cgroup: Path, sizes_bytes: Sequence[int]) -> None:
        for program in PROGRAMS:
            find_program(program, "run docker/packages.sh --bench as root")
        self._used = False
        self._namespace = LinkNamespace(cgroup)
        try:
            self._namespace.write_trace("nginx.conf", nginx_config(USER_FILES, TRACES, str(PORT)))
            for size_bytes in {0, *sizes_bytes}:
                self._namespace.write_trace(f"object-{size_bytes}", "x" * size_bytes)
        except BaseException:
            self.close()
            raise

    @property
    def cgroup(self) -> Path:
        """Returns the server's cgroup."""
        assert self._namespace.cgroup is not None
        return self._namespace.cgroup

    def start(self, spec: LinkSpec, variables: Mapping[str, str] | None = None) -> None:
        """Brings path and server up; no connection has been made over the path when it returns.

        ``variables`` are of the server's environment, and of nobody else's.
        """
        self._spec = require_emulated(spec)
        self._opportunities_ms = downlink_ms(spec)
        if self._used:
            self._namespace.fresh()
        self._used = True
        for name, text in trace_files(spec).items():
            self._namespace.write_trace(name, text)
        self._sleeper = self._namespace.spawn([f"{BIN}/reinet-sleeper"], "the sleeper", privileged=False)
        self._sleeper.wait_for("awake")
        user = f"setpriv --reuid={LINK_USER} --regid={LINK_USER} --clear-groups --"
        serve = f'echo 0 >"$0/cgroup.procs" && exec {user} env "$@" nginx -e stderr -c {TRACES}/nginx.conf'
        told = [f"{name}={value}" for name, value in (variables or {}).items()]
        self._server = self._namespace.spawn(["sh", "-c", serve, str(self.cgroup), *told], "nginx", privileged=True)
        self._shells = self._namespace.spawn(shell_command(spec, ["sh"]), "Mahimahi", privileged=False)
        self._shells.tell("""echo '{"event": "up"}'\n""")
        self._shells.wait_for("up", beside=self._server)
        served = f"until curl -s -o {USER_FILES}/none http://127.0.0.1:{PORT}/object-0; do sleep 0.02; done"
        self._namespace.run(served, "nginx")
        self._namespace.route_by(spec.cc)
        self._sleeper.tell("\n")

    def fetch(self, size_bytes: int, count: int, pause_ms: float) -> None:
        """Begins to fetch ``count`` objects over one connection, ``pause_ms`` after one another."""
        self._count, self._bytes, self._connects = count, size_bytes, 0
        self._took_ms: list[float] = []
        pause = f" -o /dev/null file://{PIPE}" if count > 1 else ""
        objects = f" -o /dev/null http://$MAHIMAHI_BASE:{PORT}/object-{size_bytes}"
        if pause:
            writer = f"while :; do sleep {pause_ms / 1000:g} >{PIPE}; sleep {BREATH_S:g}; done"
            self._shells.tell(f"mkfifo {PIPE}; ({writer}) &\n")
        transfers = objects + (pause + objects) * (count - 1)
        self._shells.tell(f"""curl -s -w '{SAY}'{transfers}; echo '{{"event": "done"}}'\n""")

    def finished(self) -> bool:
        """Returns whether the client is through. Raises LinkError when a part of the link has died."""
        for child in (self._server, self._shells, self._sleeper):
            child.check()
        done = False
        for event in self._shells.events():
            if event.get("event") == "done":
                done = True
            elif event.get("scheme") == "HTTP" and event["code"] == "200" and event["bytes"] == self._bytes:
                self._took_ms.append(1000 * float(event["total_s"]))
                self._connects += int(event["connects"])
        return done

    def stop(self) -> WebRun:
        """Reads, judges and returns what was recorded; ``close`` or another ``start`` ends the path."""
        time.sleep((self._spec.mrtt_ms / 2 + DRAIN_MS) / 1000)
        self._sleeper.end_input()
        seen = self._sleeper.wait_for("sleeper")
        sleeper = Sleeper(int(seen["wakes"]), int(seen["late_5ms"]), int(seen["max_late_us"]))
        log, _ = parse_log(self._namespace.read_log("log"), "the downlink's log")
        start_ms, end_ms = first_data_ms(log), float(log.departure_ms[-1]) + 1
        metrics = compute(log, self._spec.mrtt_ms, end_ms)
        reason = judge(log, metrics, self._opportunities_ms, start_ms, end_ms, sleeper)
        if self._connects != 1:
            reason = f"{self._connects} connections were made where one was due" + (f"; {reason}" if reason else "")
        return WebRun(np.array(self._took_ms), len(self._took_ms) == self._count, log.departure_delay_ms, reason)

    def fetch_beside(self, size_bytes: int, count: int) -> Child:
        """Begins to fetch objects over loopback, from outside the shells; returns the client, which ends by itself."""
        command = f"for i in $(seq {count}); do curl -s -o /dev/null http://127.0.0.1:{PORT}/object-{size_bytes}; done"
        return self._namespace.spawn(["sh", "-c", command], "curl over loopback", privileged=False)

    def close(self) -> None:
        """Ends everything, bounded in time; further calls do nothing."""
        self._namespace.close()

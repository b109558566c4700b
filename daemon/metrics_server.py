"""Where Prometheus asks: HTTP on a loopback port or a Unix socket, for callers that are not trusted.

A request has few bytes to read, a deadline as a whole and one of few threads; everything else is turned away. The
callers of a loopback port are all users of the host: they learn how many flows there are and how they do, and can
change nothing.
"""

import os
import socket as sockets
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import BaseServer, StreamRequestHandler, TCPServer, ThreadingMixIn
from typing import Any, cast

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from reinet.core.errors import DaemonError
from reinet.daemon.endpoint import Endpoint

MOST_REQUESTS = 4
"""A Prometheus asks once at a time; a second one and a person with curl fit too."""
MOST_WAITING = 64
"""So many connections wait for their turn, which comes in milliseconds where callers ask and read."""
REST_S = 0.1
REQUEST_S = 3.0
"""To be read takes a request milliseconds, and so does its answer once it is there; what drips is cut off."""
SOCKET_MODE = 0o660
"""Its owner and group: a Prometheus of another user is put into the group."""


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of /metrics, once per connection."""

    server_version = "reinet"
    sys_version = ""
    timeout = REQUEST_S  # of each read; the timer below bounds all of them, and all of the answer's writes

    def setup(self) -> None:
        self._begin_limit()
        super().setup()

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()
        self._end.cancel()

    def do_GET(self) -> None:
        """Answers a scrape."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "ask for /metrics")
            return
        try:
            encoder, content_type = choose_encoder(self.headers.get("Accept", ""))
        except (TypeError, ValueError):  # a version that is no number
            encoder, content_type = choose_encoder("")
        self._end.cancel()  # a loop that does not answer takes its own time, which is bounded too
        body = encoder(cast(_Server, self.server).registry)
        self._begin_limit()
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        """Answers without the body: a load balancer's question whether anybody is there."""
        self.do_GET()

    def address_string(self) -> str:
        return "a caller"

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: a caller must not fill the log."""

    def _begin_limit(self) -> None:
        self._end = threading.Timer(REQUEST_S, self._cut)
        self._end.daemon = True
        self._end.start()

    def _cut(self) -> None:
        with suppress(OSError):
            cast(sockets.socket, self.connection).shutdown(sockets.SHUT_RDWR)


class _Server(ThreadingMixIn, TCPServer):
    """A server of few threads; a connection beyond them waits for one, and is closed unheard where none gets free."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = MOST_WAITING

    def __init__(self, registry: CollectorRegistry, family: int, address: Any) -> None:
        self.registry = registry
        self.address_family = family
        self._free = threading.Semaphore(MOST_REQUESTS)
        self._closing = False
        handler: Any = _Handler
        super().__init__(address, cast(type[StreamRequestHandler], handler))

    def server_bind(self) -> None:
        # What bind(2) makes has this mode at most. Curves are written by now, so a umask, the whole process', is none.
        if self.address_family == sockets.AF_UNIX:
            os.fchmod(self.socket.fileno(), SOCKET_MODE)
        super().server_bind()

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:  # no descriptor is free, so the connection stays where it is, and would be asked for at once
            time.sleep(REST_S)
            raise

    def shutdown(self) -> None:
        """Ends the loop that accepts, also where that waits for a thread."""
        self._closing = True
        self._free.release()
        super().shutdown()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(timeout=REQUEST_S) or self._closing:
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be had
            self._free.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing: a caller that goes away is nobody's fault."""


class MetricsServer:
    """Serves what a collector tells, from construction until ``close``."""

    def __init__(self, where: Endpoint, collector: Collector) -> None:
        """Starts to listen, at a Unix socket in place of who listened before: who may is for the caller to know, who
        has claimed its path (``claim.METRICS``). Raises DaemonError where it cannot.
        """
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        try:
            if where.path is not None:
                self._server = _on_unix_socket(registry, where.path)
            else:
                family = sockets.AF_INET6 if ":" in where.host else sockets.AF_INET
                self._server = _Server(registry, family, (where.host, where.port))
        except OSError as error:
            raise DaemonError(f"metrics at {where}: {error.strerror}; set `metrics` to another place") from None
        self.port = 0 if where.path else int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops listening; a request in progress may be cut off."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(REQUEST_S)

    def _serve(self) -> None:
        cast(BaseServer, self._server).serve_forever(poll_interval=0.2)


def _on_unix_socket(registry: CollectorRegistry, path: Path) -> _Server:
    path.unlink(missing_ok=True)
    server = _Server(registry, sockets.AF_UNIX, str(path))
    path.chmod(SOCKET_MODE)  # whatever the umask
    return server

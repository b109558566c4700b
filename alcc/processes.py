"""The daemon's end of the application's gate: programs that ``reinet run --law daemon`` started, as flows of a shim.

A program hands over a sealed piece of memory (``alcc/link/memory.hpp``) and an eventfd, over a SEQPACKET socket that
says who it is. From then on records come and caps go through the memory alone. Nothing in it is believed: memory that
could shrink or is of another kind is refused, records are copied before they are looked at, and each process gets so
many of them taken in a second that none keeps the others waiting.
"""

import fcntl
import heapq
import os
import select
import socket as sockets
import stat
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from reinet.alcc.checked import checked
from reinet.alcc.handed import MOST_FDS, Handed, is_event, is_memory
from reinet.core.errors import DaemonError
from reinet.core.peers import peers_of_program
from reinet.core.period import PeriodConfig
from reinet.core.records import FLOW_STATS_DTYPE, Flag, FlowStatsArray

if TYPE_CHECKING:
    from reinet.alcc import _alcc

MOST_PROCESSES = 256
"""The memory of each is mapped here, 400 KB, and so are two descriptors."""
MOST_OF_A_USER = 128
"""Half of them: one user's programs do not keep the others' out."""
MOST_FLOWS = 16_384
"""A quarter of the kernel's, as the daemon comes configured."""
RECORDS_PER_S = 20_000
"""Of one process: a hundred flows at the shortest period that models have. Python takes some 10 us for each."""
RECORDS_AT_ONCE = 512
MOST_BAD = 100
FORGIVEN_PER_S = 1.0
"""A process with so many records that make no sense, beyond those forgiven, is not heard any more."""
_NONE, _BAD = -1, -2
"""In place of a slot: a record of a flow that ends or has no room here, and one that makes no sense."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_CREDENTIALS = struct.Struct("=iII")  # struct ucred


class Listening(NamedTuple):
    """What must be opened while that is still allowed: the socket, and the device that every memfd is on."""

    socket: sockets.socket
    device: int


def listen(path: Path) -> Listening:
    """Listens for programs at a path, in place of who listened before; any user's may connect.

    Who may be replaced is for the caller to know (``daemon.processes.claim``). Raises DaemonError where it cannot be.
    """
    with suppress(OSError):  # then bind says what is wrong
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise DaemonError(f"processes {path}: something else is there; move it away or name another path")
        path.unlink()
    socket = sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET | sockets.SOCK_CLOEXEC | sockets.SOCK_NONBLOCK)
    try:
        socket.bind(str(path))
        path.chmod(0o666)  # what a program may do there concerns nothing but its own connections
        socket.listen(64)
    except OSError as error:
        socket.close()
        raise DaemonError(f"processes {path}: {error.strerror or error}; set `processes` to another path") from None
    memory = os.memfd_create("reinet-alcc")
    try:
        return Listening(socket, os.fstat(memory).st_dev)
    finally:
        os.close(memory)


@dataclass
class _Process:
    socket: sockets.socket
    pid: int
    uid: int
    event_fd: int = -1
    link: "_alcc.Link | None" = None
    rows: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # by its own slot, -1 = none
    allowed: float = RECORDS_AT_ONCE
    refilled_ns: int = 0
    bad: float = 0.0


class ProcessShim:
    """The flows of programs under the gate, with the calls of ``Shim`` but for the waiting; slots are its own."""

    def __init__(self, listening: Listening, period: PeriodConfig, most_flows: int = MOST_FLOWS) -> None:
        """Takes connections from now on; ``period`` is what records are due by."""
        self._listening, self._period = listening, period
        self._epoll = select.epoll()
        self._epoll.register(listening.socket, select.EPOLLIN)
        self._processes: dict[int, _Process] = {}  # by their sockets' descriptors
        self._free = list(range(most_flows))
        self._owners: list[_Process | None] = [None] * most_flows
        self._locals = np.zeros(most_flows, np.uint32)
        self._cookies = np.zeros(most_flows, np.uint64)
        self._seen_ns = np.zeros(most_flows, np.uint64)
        self._slot_of: dict[int, int] = {}
        self._ended: list[tuple[int, int]] = []
        self._handed = Handed()
        self._waiting: list[_Process] = []  # until what their users handed over is closed
        self.refused = 0
        """Records that made no sense."""

    def fileno(self) -> int:
        """Returns what can be waited for: it is readable when ``take`` has something to do."""
        return self._epoll.fileno()

    def take(self, now_ns: int) -> FlowStatsArray:
        """Returns the records that are there, each process's in order, and lets programs come and go; never waits."""
        for process in [p for p in self._waiting if self._handed.may_hand_over(p.uid)]:
            self._waiting.remove(process)
            self._epoll.register(process.socket, select.EPOLLIN)
        with suppress(BlockingIOError):
            for fd, _ in self._epoll.poll(0):
                if fd == self._listening.socket.fileno():
                    if self._handed.may_come():
                        self._accept()
                elif fd in self._processes:
                    self._hear(self._processes[fd], now_ns)
        batches = [self._records(process, now_ns) for process in list(self._processes.values())]
        ended = np.zeros(len(self._ended), FLOW_STATS_DTYPE)
        for i, (slot, cookie) in enumerate(self._ended):
            ended[i]["slot"], ended[i]["cookie"] = slot, cookie
        ended["flags"], ended["time_ns"] = int(Flag.CLOSED), now_ns
        self._ended.clear()
        records = np.concatenate([np.zeros(0, FLOW_STATS_DTYPE), *batches])
        # What came before a flow's end in the same batch would bring it back to life.
        return np.concatenate([ended, records[self._cookies[records["slot"]] == records["cookie"]]])

    def give_way(self, cookies: npt.NDArray[np.uint64]) -> None:
        """Ends flows that go by the cookies of others, which are the kernel's word."""
        for cookie in self._slot_of.keys() & set(cookies.tolist()):
            self._end(self._slot_of[cookie])

    def apply(
        self,
        cookies: npt.NDArray[np.uint64],
        slots: npt.NDArray[np.uint32],
        caps_pkts: npt.NDArray[np.uint32],
        expires_ns: int,
        targets_us: npt.NDArray[np.uint32],
        renews: bool = False,
    ) -> None:
        """Writes caps as ``Shim.apply`` does; a flow that has ended meanwhile gets none.

        Which caps a program holds void is not seen from here, so they are renewed like others.
        """
        columns = (cookies.tolist(), slots.tolist(), caps_pkts.tolist(), targets_us.tolist())
        for cookie, slot, cap_pkts, target_us in zip(*columns, strict=True):
            if (link := self._link_of(slot, cookie)) is not None:
                link.apply(int(self._locals[slot]), cookie, cap_pkts, expires_ns, target_us)

    def release(self, cookies: npt.NDArray[np.uint64], slots: npt.NDArray[np.uint32]) -> None:
        """Lifts caps as ``Shim.release`` does."""
        for cookie, slot in zip(cookies.tolist(), slots.tolist(), strict=True):
            if (link := self._link_of(slot, cookie)) is not None:
                link.release(int(self._locals[slot]), cookie)

    def outstanding(self, slots: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Returns what ``Shim.outstanding`` does."""
        return np.array([self._is_busy(slot) for slot in slots.tolist()], np.bool_)

    def pids(self, slots: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Returns the process of each slot's flow, 0 = none."""
        owners = [self._owners[slot] for slot in slots.tolist()]
        return np.array([0 if owner is None else owner.pid for owner in owners], np.uint32)

    def close(self) -> None:
        """Lifts every cap and lets go of every program."""
        for process in list(self._processes.values()):
            self._drop(process)
        self._epoll.close()
        self._listening.socket.close()

    def _link_of(self, slot: int, cookie: int) -> "_alcc.Link | None":
        """Returns the memory of the program whose flow has the slot; None where the flow is another's by now."""
        owner = self._owners[slot]
        return owner.link if owner is not None and int(self._cookies[slot]) == cookie else None

    def _is_busy(self, slot: int) -> bool:
        owner = self._owners[slot]
        return owner is not None and owner.link is not None and owner.link.busy(int(self._locals[slot]))

    def _accept(self) -> None:
        try:
            socket, _ = self._listening.socket.accept()
        except OSError:  # it went again, or there are no descriptors left
            return
        socket.setblocking(False)
        pid, uid, _ = _CREDENTIALS.unpack(socket.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, _CREDENTIALS.size))
        of_user = sum(process.uid == uid for process in self._processes.values())
        if len(self._processes) >= MOST_PROCESSES or of_user >= MOST_OF_A_USER:
            self._handed.close([socket.detach()], uid)
            return
        self._processes[socket.fileno()] = _Process(socket, pid, uid)
        self._epoll.register(socket, select.EPOLLIN)

    def _hear(self, process: _Process, now_ns: int) -> None:
        """Takes what a program says: its descriptors, once, and then nothing any more but its end."""
        fds: list[int] = []
        try:
            if not self._handed.may_hand_over(process.uid):
                self._epoll.unregister(process.socket)
                self._waiting.append(process)
                return
            word, fds, _, _ = sockets.recv_fds(process.socket, 1, MOST_FDS)
            if process.link is not None or word != b"M" or len(fds) != 2:
                raise ValueError("the program is gone, or says what it should not")
            if not is_memory(fds[0]) or not is_event(fds[1]):
                raise ValueError("no memory, or nothing to be woken by")
            self._open(process, fds[0], fds[1])
            process.event_fd, fds = fds[1], fds[:1]
            process.refilled_ns = now_ns
        except BlockingIOError:
            return
        except (OSError, ValueError):
            self._drop(process)
        finally:
            self._handed.close(fds, process.uid)

    def _open(self, process: _Process, memory_fd: int, event_fd: int) -> None:
        """Maps the memory; raises OSError or ValueError for what is none, or could be taken away again."""
        from reinet.alcc import _alcc  # not built everywhere

        status = os.fstat(memory_fd)
        if status.st_dev != self._listening.device or status.st_size != _alcc.LINK_BYTES:
            raise ValueError("no memfd of the right size")
        if fcntl.fcntl(memory_fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ValueError("a memfd that may shrink")
        link = _alcc.Link(memory_fd, self._period.min_period_ns, self._period.packet_timed)
        # Edges alone: nobody ever reads from it, which might wait.
        self._epoll.register(event_fd, select.EPOLLIN | select.EPOLLET)
        process.link = link
        process.rows = np.full(_alcc.LINK_SLOTS, -1, np.int64)

    def _drop(self, process: _Process) -> None:
        """Ends the flows of a program; its caps are lifted, should it live."""
        for slot in process.rows[process.rows >= 0].tolist():
            self._end(slot)
        process.link = None
        del self._processes[process.socket.fileno()]
        if process.event_fd >= 0:
            with suppress(OSError):
                self._epoll.unregister(process.event_fd)
            os.close(process.event_fd)
        if process in self._waiting:
            self._waiting.remove(process)
        else:
            self._epoll.unregister(process.socket)
        self._handed.close([process.socket.detach()], process.uid)  # with what was not read of it

    def _records(self, process: _Process, now_ns: int) -> FlowStatsArray:
        """Returns the records of a program that make sense, with slots of ours."""
        if process.link is None:
            return np.zeros(0, FLOW_STATS_DTYPE)
        elapsed_s = (now_ns - process.refilled_ns) / 1e9
        process.allowed = min(process.allowed + elapsed_s * RECORDS_PER_S, RECORDS_AT_ONCE)
        process.bad = max(process.bad - elapsed_s * FORGIVEN_PER_S, 0.0)
        process.refilled_ns = now_ns
        try:
            records = process.link.take(int(process.allowed)).view(FLOW_STATS_DTYPE)
        except ValueError:  # a ring out of its mind
            self._drop(process)
            return np.zeros(0, FLOW_STATS_DTYPE)
        process.allowed -= len(records)
        taken_ns = time.monotonic_ns()  # programs go on writing: what was taken is no younger than this
        places = [
            self._place(process, record) if makes_sense else _BAD
            for record, makes_sense in zip(records, checked(records, taken_ns, len(process.rows)), strict=True)
        ]
        bad = places.count(_BAD)
        process.bad += bad
        self.refused += bad
        if process.bad > MOST_BAD:
            self._drop(process)
            return np.zeros(0, FLOW_STATS_DTYPE)
        slots = np.array(places, np.int64)
        found: FlowStatsArray = records[slots >= 0]
        found["slot"] = slots[slots >= 0]
        found["peer"] = peers_of_program(found["peer"], process.uid)
        return found

    def _place(self, process: _Process, record: np.void) -> int:
        """Returns our slot of a record's flow, a new one perhaps; _NONE where there is none to tell of, _BAD."""
        own, cookie, time_ns = int(record["slot"]), int(record["cookie"]), int(record["time_ns"])
        slot = int(process.rows[own])
        if slot >= 0 and int(self._cookies[slot]) != cookie:
            self._end(slot)
            slot = -1
        if int(record["flags"]) & Flag.CLOSED:
            if slot >= 0:
                self._end(slot)
            return _NONE
        if slot < 0:
            if cookie in self._slot_of:
                return _BAD
            if not self._free:  # the table's fault, not the program's
                return _NONE
            slot = heapq.heappop(self._free)
            process.rows[own] = slot
            self._owners[slot], self._locals[slot] = process, own
            self._cookies[slot], self._seen_ns[slot] = cookie, 0
            self._slot_of[cookie] = slot
        if time_ns <= int(self._seen_ns[slot]):
            return _BAD
        self._seen_ns[slot] = time_ns
        return slot

    def _end(self, slot: int) -> None:
        """Forgets a flow; whoever follows it hears so with the next records."""
        owner, cookie = self._owners[slot], int(self._cookies[slot])
        if owner is not None:
            own = int(self._locals[slot])
            if owner.link is not None:
                owner.link.release(own, cookie)
            owner.rows[own] = -1
        self._ended.append((slot, cookie))
        self._owners[slot] = None
        self._cookies[slot] = 0
        del self._slot_of[cookie]
        heapq.heappush(self._free, slot)

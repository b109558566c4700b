"""What shims have loaded on this host, what keeps it there once they are gone, and how it is removed."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from reinet.core.visible import some_of
from reinet.kshim.probe import features, missing_capabilities, registered_congestion_controls, wrapper_names
from reinet.kshim.shim import WRAPPED_CC

_LOOKING = {"CAP_SYS_ADMIN": 21}
"""Finding BPF programs by their number and entering other network namespaces asks for this."""

PATIENCE_S = 1.0
"""Flows that send see an ACK within it; round trips beyond a second are rare."""

T = TypeVar("T")

_NEEDED = ("privileges", "native")
_WRAPPER = re.compile(rf"reinet_(?:{'|'.join(WRAPPED_CC)})(\d{{0,3}})")
"""A shim's names, and what all of them end in."""
CONTROL = "reinet_control"
"""The map that says of a shim whether it has ended, and by which sockets are asked to leave."""
_BPF_FD = re.compile(r"^(prog|map)_id:\s*(\d+)$", re.MULTILINE)


class Loaded(NamedTuple):
    """A BPF program or map of reinet's, whoever loaded it."""

    kind: str
    id: int
    name: str
    pids: tuple[int, ...]
    """The processes that hold it open; where there are none only sockets keep it, or it is being freed."""

    def __str__(self) -> str:
        return f"BPF {self.kind} {self.id} {self.name}"


class Holder(NamedTuple):
    """A network namespace in which sockets still run what a shim left."""

    network_namespace: int
    """Its inode, as ``ls -l /proc/PID/ns/net`` shows it."""
    sockets: int
    pids: tuple[int, ...]
    """The processes that live in it; without any, descriptors elsewhere keep it."""

    def __str__(self) -> str:
        where = f"processes {some_of(self.pids)}" if self.pids else "no process lives in it"
        return f"{self.sockets} sockets in network namespace {self.network_namespace} ({where})"


def why_not_looked() -> str:
    """Returns why leftovers cannot be looked for here; empty where they can."""
    missing = missing_capabilities(_LOOKING)
    if missing:
        return f"this process lacks {', '.join(missing)}"
    found = features()
    return "; ".join(found[name].why for name in _NEEDED if not found[name].ok)


def loaded() -> list[Loaded]:
    """Returns every BPF program and map of reinet's on this host; empty without the rights to look."""
    from reinet.kshim import _kshim  # not built everywhere

    try:
        found = _kshim.loaded("reinet")
    except OSError:
        return []
    openers = _openers() if found else {}  # looks at every descriptor on the host
    return [Loaded(kind, number, name, tuple(openers.get((kind, number), ()))) for kind, number, name in found]


def leftovers() -> list[Loaded]:
    """Returns what no process holds any more: sockets that outlived their shim still run it, without any cap.

    It goes by itself when they close; ``remove_leftovers`` does not wait for that. Empty where ``why_not_looked``.

    A process of another pid namespace, or with more capabilities than this one, holds what it holds unseen. Its shim
    has ended where its wrapper was registered and is no more, which goes with its process. While there is one that
    lives, or still loads, programs and maps that nobody is seen to hold may be its own: of these only the control maps
    of other shims are left over for certain.
    """
    if why_not_looked():
        return []
    left = [item for item in loaded() if not item.pids]
    ended = [item for item in left if item.name != CONTROL or _has_ended(item.id)]
    return ended if len(ended) == len(left) else [item for item in ended if item.name == CONTROL]


def holders(left: list[Loaded]) -> list[Holder]:
    """Returns where the sockets are that keep leftovers. Those that were disconnected since are not found, nor those
    closed with data unsent in a namespace to which nothing else leads."""
    from reinet.kshim import _kshim  # not built everywhere

    maps = _ids(left, "reinet_flows")
    if not maps:
        return []
    try:
        sockets = _kshim.where(list(wrapper_names().items()), maps)
    except OSError:  # a kernel that has lost what the shim needs
        return []
    inhabitants: dict[int, list[int]] = {}
    for process in _processes():
        try:
            inhabitants.setdefault((process / "ns" / "net").stat().st_ino, []).append(int(process.name))
        except OSError:
            continue  # gone, or another user's
    return [Holder(inode, count, tuple(sorted(inhabitants.get(inode, ())))) for inode, count in sockets.items()]


def on_their_way(left: list[Loaded]) -> bool:
    """Returns whether leftovers go by themselves, each with its sockets' next ACK: their shim was stopped, not killed,
    or somebody has asked them to since."""
    from reinet.kshim import _kshim  # not built everywhere

    return all(_still_there(_kshim.is_leaving, control) is not False for control in _ids(left, CONTROL))


def ask_leftovers_to_leave() -> list[Loaded]:
    """Asks the sockets of shims that were killed to go back to their own congestion control at their next ACK.

    What that has learned goes along. Flows of living shims are not touched. Returns what was asked; empty where
    ``why_not_looked``: then those sockets go on under the wrapper, inert, until they close.
    """
    from reinet.kshim import _kshim  # not built everywhere

    left = leftovers()
    for control in _ids(left, CONTROL):
        _still_there(_kshim.ask_to_leave, control)
    return left


def suffixes_of(left: list[Loaded]) -> list[str]:
    """Returns what the names of the wrappers end in that sockets may still run, each once, the latest shim's first."""
    from reinet.kshim import _kshim  # not built everywhere

    wrappers = [_still_there(_kshim.wrapper_of, control) for control in sorted(_ids(left, CONTROL), reverse=True)]
    return list(dict.fromkeys(match[1] for wrapper in wrappers if wrapper and (match := _WRAPPER.fullmatch(wrapper))))


def remove_leftovers(patience_s: float = PATIENCE_S) -> None:
    """Gives the sockets of shims that have ended back to their own congestion control, in every network namespace.

    Those that send go at their next ACK, with what their congestion control has learned. Those that gave no sign for
    ``patience_s`` are switched from outside, so theirs begins anew: BBR in STARTUP, when they send again. Where a
    namespace cannot be reached they wait for an ACK. Flows of living shims are not touched.
    """
    from reinet.kshim import _kshim  # not built everywhere

    suffixes = suffixes_of(ask_leftovers_to_leave())
    end_s = time.monotonic() + patience_s
    while (still := leftovers()) and time.monotonic() < end_s:
        time.sleep(0.05)
    if not still:
        return
    for names in map(wrapper_names, suffixes):
        if not _kshim.sweep(list(names.items())):  # another shim has taken them since
            _kshim.sweep_flows(list(names.items()), _ids(still, "reinet_flows"))


def _still_there(use: Callable[[int], T], map_id: int) -> T | None:
    """Returns what ``use`` makes of a map; None where the map went meanwhile, with its last socket."""
    try:
        return use(map_id)
    except FileNotFoundError:
        return None


def _has_ended(control_map_id: int) -> bool:
    """Returns whether the shim that a control map belongs to has been there and is no more, in whichever process.

    One that loads has no link and no name yet: it writes the link's number first, so the name is read first here. By
    the name alone, which another may have taken since, a shim of an earlier version is known.
    """
    from reinet.kshim import _kshim  # not built everywhere

    wrapper = _still_there(_kshim.wrapper_of, control_map_id)
    link = _still_there(_kshim.link_of, control_map_id)
    if wrapper is None or link is None:
        return True  # the map went meanwhile
    return not _kshim.is_linked(link) if link else bool(wrapper) and wrapper not in registered_congestion_controls()


def _ids(items: list[Loaded], name: str) -> list[int]:
    return [item.id for item in items if item.kind == "map" and item.name == name]


def _processes() -> Iterator[Path]:
    return (process for process in Path("/proc").iterdir() if process.name.isdigit())


def _openers() -> dict[tuple[str, int], list[int]]:
    """Returns the processes that hold each BPF program and map open, by kind and id."""
    openers: dict[tuple[str, int], list[int]] = {}
    for process in _processes():
        try:
            infos = list((process / "fdinfo").iterdir())
        except OSError:
            continue  # the process is gone, or another user's
        for info in infos:
            with suppress(OSError):  # the descriptor is gone
                if match := _BPF_FD.search(info.read_text(encoding="ascii", errors="replace")):
                    openers.setdefault((match[1], int(match[2])), []).append(int(process.name))
    return openers

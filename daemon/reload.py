"""The daemon's file, taken up again while it runs: on SIGHUP, and when it changes.

What the loop can change while flows go on is put in force: model, target, mode and policies. Other keys need a restart,
and are named. A file that makes no sense changes nothing: the old one stays in force, and ``problem`` says why.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import structlog

from reinet.agents.decide.inspection.facts import Snapshot
from reinet.agents.decide.modes import Placer, PolicySpec
from reinet.agents.decide.protocol import Agent
from reinet.core.errors import ReinetError, unread
from reinet.core.target import Target
from reinet.core.visible import some_of
from reinet.daemon.cgroups import check_policies
from reinet.daemon.config import DaemonConfig, load_config
from reinet.daemon.sockets import Dump, SocketPlacer

CHANGEABLE = {"model", "model_sha256", "target", "target_ms", "mode", "hold_out_share", "policies"}
"""The keys that are put in force while the daemon runs."""

log = structlog.get_logger("reinet.reload")

LoadAgent = Callable[[DaemonConfig, str, Target], Agent]
Stamp = tuple[int, int, int] | None


def policy_specs(config: DaemonConfig, agent: Agent, load: LoadAgent) -> list[PolicySpec]:
    """Returns what the loop is to be told: the default first, by which ``agent`` decides, then the policies, in order.

    Each policy has an agent of its own, for some agents remember flows by their place.
    """
    found = [PolicySpec(agent, config.asked, config.mode, config.hold_out_share)]
    for policy in config.policies:
        target = policy.target or config.asked
        found.append(
            PolicySpec(
                agent=load(config, policy.model or config.model, target),
                target=target,
                mode=policy.mode or config.mode,
                plain_share=policy.hold_out_share or config.hold_out_share,
                name=policy.name,
            )
        )
    return found


class Commanded(Protocol):
    """What is told of policies: a loop, or whoever keeps one."""

    def snapshot(self) -> Snapshot:
        """Returns the flows that are open."""

    def command(self, specs: Sequence[PolicySpec], placer: Placer | None = None) -> None:
        """Puts policies in the place of all, as ``ControlLoop.command`` does."""


class Reloader:
    """Keeps a loop as its file says; ``look`` and ``reload`` belong to one thread."""

    def __init__(
        self,
        path: Path | None,
        config: DaemonConfig,
        loop: Commanded,
        load: LoadAgent,
        sockets: Dump,
        stamp: Stamp = None,
        waits: bool = False,
    ) -> None:
        """Takes over the loop of a configuration that was loaded from ``path``; None = from no file.

        ``stamp`` is the file's when it was loaded, None = as it is now. ``sockets`` is what a ``SocketPlacer`` asks.
        With ``waits`` a file that changed is left until two looks in a row have found it the same: half a file that
        somebody is writing may make sense too, and say ``enforce`` where the whole one says ``shadow``.
        """
        self.problem = ""
        """Why the file, as it is now, is not in force; empty when it is."""
        self.config = config
        """The configuration in force."""
        self._path, self._loop, self._load = path, loop, load
        self._sockets = sockets
        self._placer: SocketPlacer | None = None
        self.stamp = stamp or stamp_of(path)
        """That of the file that was read last."""
        self._waits = waits
        self._seen: Stamp = None  # that of a file that was not there at the look before
        self._told_closed = False

    def start(self, agent: Agent) -> None:
        """Puts the policies of the configuration in force, beside the agent that the loop was made with."""
        if self.config.policies:
            self._command(self.config, agent)

    def close(self) -> None:
        """Ends what was started."""
        if self._placer is not None:
            self._placer.close()

    def look(self) -> None:
        """Reloads the file if it is another one than before."""
        stamp = stamp_of(self._path)
        if stamp is None:
            self._tell_if_closed()
        before, self._seen = self._seen, stamp
        if stamp is not None and stamp != self.stamp and (stamp == before or not self._waits):
            self.reload()

    def _tell_if_closed(self) -> None:
        """Says, once, that the file lies in a folder closed to whoever looks: what changes there goes unseen."""
        if self._path is None or self._told_closed:
            return
        try:
            self._path.stat()
        except PermissionError as error:
            self._told_closed = True
            log.warning("changes of the configuration are not seen", file=str(self._path), why=unread(error))
        except OSError:  # it was removed
            return

    def reload(self) -> bool:
        """Puts the file in force as it is now; returns False where the old one stays, and ``problem`` says why."""
        if self._path is None:
            return False
        self.stamp = stamp_of(self._path)
        try:
            config = load_config(self._path)
            check_policies(config.policies)
            self._command(config, self._load(config, config.model, config.asked))
        except Exception as error:  # whatever is wrong with a file that was changed, the daemon goes on
            why = str(error) if isinstance(error, ReinetError | OSError) else repr(error)
            self.problem = f"the configuration was not reloaded, the old one stays in force: {why}"
            log.error("not reloaded, the old configuration stays in force", error=why)
            return False
        self.problem = ""
        fixed = [
            key
            for key in DaemonConfig.model_fields
            if key not in CHANGEABLE and getattr(config, key) != getattr(self.config, key)
        ]
        if fixed:
            log.warning("these keys take effect with the next start only", keys=fixed)
        self.config = config
        log.info("reloaded", file=str(self._path), policies=some_of([policy.name for policy in config.policies]))
        return True

    def _command(self, config: DaemonConfig, agent: Agent) -> None:
        wanted = policy_specs(config, agent, self._load)
        placer = None
        if config.policies:
            placer = SocketPlacer(config.policies, self._sockets)
            placer.look(self._loop.snapshot().stats["cookie"])  # so that flows under a policy stay under it
        self._loop.command(wanted, placer)
        self.close()
        self._placer = placer and placer.start()


def stamp_of(path: Path | None) -> Stamp:
    """Returns what tells a file from an earlier one; None where it is not there."""
    with suppress(OSError):
        found = path.stat() if path else None
        return found and (found.st_mtime_ns, found.st_size, found.st_ino)
    return None

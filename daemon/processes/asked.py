"""What callers asked of the loop and what holds from when it is answered, whichever process dies then."""

import json

from reinet.daemon.processes.shared_flag import SharedFlag
from reinet.daemon.processes.shared_text import SharedText

MOST_BYTES = 128 * 1024
"""Targets of 1024 flows, the most there may be, take less than 64 bytes each."""


class Asked:
    """A pause and targets, in memory that the loader makes: the decision process writes it, and its successor reads."""

    def __init__(self) -> None:
        self.pause = SharedFlag()
        """Whether somebody asked for one."""
        self._targets = SharedText(MOST_BYTES)

    def targets(self) -> tuple[str, dict[int, str]]:
        """Returns what was set for all flows, empty = the configuration's, and what for single ones, by cookie."""
        if not (text := self._targets.read()):
            return "", {}
        common, own = json.loads(text)
        return common, {int(cookie): target for cookie, target in own.items()}

    def keep_targets(self, common: str, own: dict[int, str]) -> None:
        """Keeps what ``targets`` returns from now on."""
        self._targets.write(json.dumps([common, own]))

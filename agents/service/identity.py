"""Who calls, and what they may do: the socket's owner everything, others what their certificate's name is given."""

from collections.abc import Mapping
from dataclasses import dataclass

from reinet.agents.service.config import Quota, Role, TrainerConfig

LOCAL = "local"
"""Who calls over the Unix socket: its permissions have decided already."""
ALL_ROLES: frozenset[Role] = frozenset({"submit", "promote", "read"})

NEEDS: Mapping[str, Role] = {
    "Missing": "submit", "Upload": "submit", "SendFlow": "submit",
    "Submit": "submit", "Stop": "submit", "Resume": "submit",
    "Get": "read", "Watch": "read", "List": "read", "Show": "read", "Fetch": "read", "History": "read",
    "Resolve": "read", "Follow": "read", "Report": "read", "Fleet": "read",
    "Promote": "promote", "Rollback": "promote", "Gc": "promote",
}  # fmt: skip
"""The role that each call asks for; one that is not here is refused."""


@dataclass(frozen=True)
class Caller:
    """An identity with its roles and quota."""

    name: str
    roles: frozenset[Role]
    quota: Quota


class Callers:
    """Tells callers by how they reached the service."""

    def __init__(self, config: TrainerConfig) -> None:
        self._local = Caller(LOCAL, ALL_ROLES, config.quota)
        self._named = {
            one.name: Caller(f"tls:{one.name}", frozenset(one.roles), one.quota) for one in config.identities
        }

    def quota_of(self, owner: str) -> Quota:
        """Returns an identity's quota, by the name that its jobs bear; that of the socket where it is known no more."""
        known = {one.name: one.quota for one in self._named.values()}
        return known.get(owner, self._local.quota)

    def of(self, peer: str, certificate: Mapping[str, object]) -> Caller | None:
        """Returns who calls, by gRPC's name of the peer and what it says of its certificate; None = nobody known."""
        if peer.startswith("unix:"):
            return self._local
        names = certificate.get("x509_common_name")
        if not isinstance(names, list | tuple) or len(names) != 1 or not isinstance(names[0], bytes):
            return None
        return self._named.get(names[0].decode("utf-8", "replace"))

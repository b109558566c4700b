"""Policies: which sockets are under which model, target and mode; ``[[policy]]`` entries of the daemon's file."""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from reinet.agents.decide.modes import Mode
from reinet.core.errors import ConfigError
from reinet.core.target import Target
from reinet.core.toml_file import NamedPath
from reinet.daemon.endpoint import MOST_PORT

Network = IPv4Network | IPv6Network
MAPPED = IPv6Network("::ffff:0:0/96")
Ports = tuple[int, int]
"""The first and the last port of a range."""

REGISTRY_PREFIX = "registry:"
"""``model = "registry:production"`` names a name of the registry in place of a folder."""
SHARE_LIMITS = (0.01, 0.5)
"""Below a hundredth the plain group never has enough flows to tell anything; more than half is no model in service."""


def as_target(value: Any) -> Target:
    """Returns a target by its text; raises ValueError, which pydantic collects with the key's name."""
    try:
        return value if isinstance(value, Target) else Target.parse(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None


AnyTarget = Annotated[Target, BeforeValidator(as_target)]
Share = Annotated[float, Field(ge=SHARE_LIMITS[0], le=SHARE_LIMITS[1])]


def _ports(value: Any) -> Ports:
    first, dash, last = value.partition("-") if isinstance(value, str) else (value, "", value)
    try:
        if isinstance(value, float):
            raise TypeError("a part of a port")
        ports = int(first), int(last if dash or not isinstance(value, str) else first)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{value!r} is no port and no range: write 443 or '8000-8099'") from None
    if isinstance(value, bool) or not 1 <= ports[0] <= ports[1] <= MOST_PORT:
        raise ValueError(f"{value!r} is no port and no range within 1 to {MOST_PORT}, the lower end first")
    return ports


def _network(value: Any) -> Network:
    cure = "write a prefix as 10.0.0.0/8 or 2001:db8::/32"
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no prefix; {cure}")
    try:
        network = ip_network(value)
    except ValueError as error:
        raise ValueError(f"{error}; {cure}") from None
    if network.version == 6 and network.subnet_of(MAPPED):  # a peer's mapped address is compared as IPv4's
        return ip_network((int(network.network_address) & 0xFFFF_FFFF, network.prefixlen - MAPPED.prefixlen))
    return network


class PolicyConfig(BaseModel):
    """One ``[[policy]]``: sockets that fit each selector given are under it; of several policies the first counts."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = Field(min_length=1, max_length=64, description="what logs and `reinet ctl` call it")
    cgroups: tuple[NamedPath, ...] = Field(
        default=(), description="cgroup folders or patterns; sockets in them or below"
    )
    local_ports: tuple[Annotated[Any, BeforeValidator(_ports)], ...] = Field(
        default=(), description='ports of this host: 443, or "8000-8099"'
    )
    peers: tuple[Annotated[Any, BeforeValidator(_network)], ...] = Field(
        default=(), description="prefixes of the other end's address: 10.0.0.0/8, 2001:db8::/32"
    )

    model: str | None = Field(default=None, min_length=1, description="absent = the daemon's")
    target: AnyTarget | None = Field(default=None, description="absent = the daemon's")
    mode: Mode | None = Field(default=None, description="absent = the daemon's")
    hold_out_share: Share | None = Field(default=None, description="absent = the daemon's")

    @field_validator("name")
    @classmethod
    def _default_is_taken(cls, value: str) -> str:
        if value == "default":
            raise ValueError("'default' is what is under no policy, as the [daemon] table says; choose another name")
        return value

    @field_validator("model")
    @classmethod
    def _only_the_default_follows(cls, value: str | None) -> str | None:
        if value is not None and value.startswith(REGISTRY_PREFIX):
            raise ValueError(f"{value!r}: only [daemon] follows a name of the registry; name a folder, or leave it out")
        return value


def distinct(policies: Sequence[PolicyConfig]) -> None:
    """Raises ConfigError for two policies of one name."""
    names = [policy.name for policy in policies]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ConfigError(f"[[policy]] {index + 1}: the name {name!r} is taken by another one")

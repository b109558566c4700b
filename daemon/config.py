"""The daemon's configuration: one TOML file with one table, ``[daemon]``; every key is described here."""

from pathlib import Path
from socket import gethostname
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from reinet.agents.decide.modes import PLAIN_SHARE, Mode
from reinet.core import MAX_CAP_PKTS, MIN_CAP_PKTS, toml_file
from reinet.core.errors import ConfigError
from reinet.core.target import MOST_MS, Form, Target
from reinet.core.toml_file import NamedPath
from reinet.daemon.endpoint import Endpoint, own_socket, socket_path
from reinet.daemon.policies import REGISTRY_PREFIX, AnyTarget, PolicyConfig, Share, distinct
from reinet.kshim.gathering import GATHER_MS
from reinet.kshim.leases import LEASE_MS, RENEWALS_PER_LEASE


def default_socket() -> Path:
    """Returns where this user's daemon listens."""
    return own_socket("control.sock")


class RegistryConfig(BaseModel):
    """``[daemon.registry]``: where the training service is whose names ``model = "registry:NAME"`` may say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    address: str = Field(min_length=1, description="unix:PATH or HOST:PORT of the service")
    ca: NamedPath | None = Field(
        default=None, description="certificate of who signed the service's (PEM), for HOST:PORT"
    )
    cert: NamedPath | None = Field(default=None, description="this daemon's certificate (PEM)")
    key: NamedPath | None = Field(default=None, description="its key (PEM)")
    folder: NamedPath = Field(default=Path("/var/lib/reinet/models"), description="where fetched models lie")
    called: str = Field(
        default_factory=gethostname, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="this daemon's name"
    )


class RecordConfig(BaseModel):
    """``[daemon.record]``: flows recorded for ``reinet traces from-flows``; ``kshim/recorded.py`` says what is kept."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    folder: NamedPath = Field(description="where recorded flows lie")
    # A tenth of a busy server's flows fills most_mb within the hour, and links repeat among flows.
    share: float = Field(default=0.1, gt=0, le=1, description="share of the flows that is recorded")
    # An hour of six flows at 5 ms a record; a training draws from a few dozen minutes of each kind of link.
    most_mb: int = Field(
        default=256, ge=1, le=1_000_000, description="recorded flows of all starts take at most so much"
    )
    key_file: NamedPath | None = Field(
        default=None, description="file with the site's secret, by which flows are named; absent = a new one each start"
    )
    send: bool = Field(default=False, description="send them to the service of [daemon.registry]; its role is submit")


class DaemonConfig(BaseModel):
    """The ``[daemon]`` table. Relative paths start at the folder in which the daemon is started."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model: str = Field(
        min_length=1,
        description="model folder, registry:NAME, or what needs none: rule, rule:G, fixed:N, none (watch only)",
    )
    # Whoever may write the model's folder decides about caps; with the digest only who may write this file does.
    model_sha256: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{64}$",
        description="sha256 of the model's manifest.json, which names those of its files; absent = any is served",
    )
    cgroups: tuple[NamedPath, ...] = Field(
        min_length=1, description="cgroup v2 folders; only TCP sockets of processes in them are capped; must exist"
    )
    # A restart or an upgrade must not leave long flows alone until they end.
    adopt: bool = Field(default=True, description="take over sockets that were open before the start, too")
    # Every client has the same room for a queue, however far away it is: 30 ms are DeepCC's 50 ms on its path of 20 ms,
    # and inside what models are trained with (15 to 80 ms). What a queue is for, a radio link's pauses, does not grow
    # with the distance, so a multiple fits few paths: 2.5x leaves 6 ms at 4 ms and 300 ms at 200 ms. Measured with
    # checkpoints/default, simulated, lte-walking: at 4 ms 2.5x keeps 69 % of plain Cubic's throughput, +30ms 76 %; at
    # 200 ms 2.5x leaves all of its 95th percentile of queueing delay, +30ms 64 %; at 20 ms they are one.
    target: AnyTarget = Field(
        default=Target(Form.ABOVE, 30.0),
        description="round-trip time to stay below: 50ms, or +30ms or 2.5x of the path's minimum",
    )
    # An older name of the absolute form, for configurations that have it.
    target_ms: float | None = Field(
        default=None, gt=0, le=MOST_MS, description="an absolute target in milliseconds, in place of target"
    )
    mode: Mode = Field(
        default=Mode.ENFORCE,
        description="enforce, shadow (decide, apply nothing) or hold-out (compare with plain flows)",
    )
    hold_out_share: Share = Field(default=PLAIN_SHARE, description="share of flows that a hold-out leaves plain")
    # At most 900: after kill -9 no cap may act for longer than 1 s. At least 60, or renewals would be due every few ms.
    lease_ms: int = Field(
        default=LEASE_MS, ge=60, le=900, description="how long a cap outlives the last completed tick"
    )
    # Records wake the loop earlier; this bounds how late a renewal, a pause and a stop may be.
    tick_ms: int = Field(default=50, ge=1, le=300, description="longest wait for records")
    # Its reason stands beside it. Beyond 20 ms renewals and pauses would come late.
    gather_ms: float = Field(
        default=GATHER_MS, ge=0, le=20, description="longest wait from one tick to the next for more records; 0 = none"
    )
    # Off: a server's own link is hardly ever the narrow one, and its clients have access links of their own.
    shared_uplink: bool = Field(
        default=False, description="all flows share the queue of this host's own link, as behind a cellular modem"
    )
    ceiling_pkts: int = Field(default=MAX_CAP_PKTS, ge=MIN_CAP_PKTS, le=MAX_CAP_PKTS, description="no cap above this")
    # A flow takes 324 bytes of kernel memory: 256 of its slot, 64 of its cap, 4 in the list of free slots; 65 536 take
    # 20 MiB, from the start. More than a busy proxy's 10 000 connections, so that a burst of short ones finds room too.
    max_flows: int = Field(
        default=65_536, ge=1, le=1_048_576, description="room for so many flows at once; further ones stay uncapped"
    )
    # A record takes 160 bytes, header included, so 8 MiB hold 52 428: one of four flows in five, or all that 10 000
    # flows with an RTT of 20 ms give in 100 ms, two ticks.
    records_mb: int = Field(
        default=8,
        ge=1,
        le=256,
        description="ring buffer of records, in MiB, a power of two; when full, records are lost",
    )
    # The model's own rule unless set; the upper bound keeps a decision's age below a lease.
    min_period_ms: int | None = Field(
        default=None, ge=1, le=500, description="shortest period between decisions for a flow; absent = the model's"
    )
    socket: NamedPath = Field(default_factory=default_socket, description="control socket; only its owner may connect")
    # Off: any user of the host may ask a loopback port, and not every host has a Prometheus.
    metrics: str | None = Field(
        default=None,
        description="where Prometheus asks: 127.0.0.1:9469 or unix:/run/reinet/metrics.sock; absent = nowhere",
    )
    # Absent: any user's programs may connect there, and not every host has some under the gate.
    processes: NamedPath | None = Field(
        default=None, description="socket of programs under `reinet run --law daemon`; absent = there are none"
    )
    registry: RegistryConfig | None = Field(default=None, description="the service of model = registry:NAME")
    log_dir: NamedPath | None = Field(default=None, description="folder for TensorBoard event files; absent = none")
    # Four curves at 10 points/s take about 1 kB/s and flow: three days of one flow, or half an hour of 150.
    log_max_mb: int = Field(
        default=256,
        ge=1,
        le=1_000_000,
        description="event files of all starts take at most so much",
    )

    record: RecordConfig | None = Field(default=None, description="flows recorded for learning; absent = none")

    policies: tuple[PolicyConfig, ...] = Field(default=(), description="the [[policy]] entries of the file")

    @field_validator("cgroups", mode="before")
    @classmethod
    def _one_cgroup_may_stand_alone(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("cgroups")
    @classmethod
    def _no_cgroup_twice(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        for index, path in enumerate(value):
            if path in value[:index]:
                raise ValueError(f"{path} is listed twice; give every cgroup once")
        return value

    @field_validator("records_mb")
    @classmethod
    def _a_ring_buffer_is_a_power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            below = 1 << (value.bit_length() - 1)
            raise ValueError(f"the kernel makes ring buffers of 1, 2, 4, 8, ... MiB; use {below} or {2 * below}")
        return value

    @field_validator("metrics")
    @classmethod
    def _metrics_stay_on_the_host(cls, value: str | None) -> str | None:
        if value is None:
            return None
        where = Endpoint.parse(value)
        if where.path is not None:
            socket_path(where.path)
        return str(where)

    @field_validator("socket", "processes")
    @classmethod
    def _socket_fits(cls, value: Path | None) -> Path | None:
        return None if value is None else socket_path(value)

    @model_validator(mode="after")
    def _each_socket_has_its_own_path(self) -> "DaemonConfig":
        metrics = None if self.metrics is None else Endpoint.parse(self.metrics).path
        taken: dict[Path, str] = {}
        for key, path in (("socket", self.socket), ("processes", self.processes), ("metrics", metrics)):
            if path is not None and (other := taken.setdefault(path, key)) != key:
                raise ValueError(f"{other} and {key} are both {path}; give each a path of its own")
        return self

    @model_validator(mode="after")
    def _one_target(self) -> "DaemonConfig":
        if self.target_ms is not None and "target" in self.model_fields_set:
            raise ValueError(f'target = "{self.target}" and target_ms = {self.target_ms:g} are both given; keep one')
        return self

    @model_validator(mode="after")
    def _registry_goes_with_its_name(self) -> "DaemonConfig":
        if self.model.startswith(REGISTRY_PREFIX) and self.registry is None:
            raise ValueError(f'model = "{self.model}" needs [daemon.registry] with the address of the service')
        if self.record is not None and self.record.send and self.registry is None:
            raise ValueError("record.send needs [daemon.registry] with the address of the service")
        if self.model.startswith(REGISTRY_PREFIX) and self.model_sha256 is not None:
            raise ValueError(
                f'model = "{self.model}" names other models in time, each fetched by its own digest, and model_sha256 '
                "would refuse all but one; leave it out, or name that model's folder"
            )
        return self

    @model_validator(mode="after")
    def _ticks_keep_leases(self) -> "DaemonConfig":
        if self.tick_ms * RENEWALS_PER_LEASE > self.lease_ms:
            raise ValueError(
                f"tick_ms = {self.tick_ms} is more than a third of lease_ms = {self.lease_ms}: caps would lapse "
                f"between renewals; use tick_ms <= {self.lease_ms // RENEWALS_PER_LEASE}"
            )
        return self

    @property
    def asked(self) -> Target:
        """Returns the target of every flow, by whichever of its two keys it was given."""
        return self.target if self.target_ms is None else Target(Form.ABSOLUTE, self.target_ms)

    @property
    def keeps_records(self) -> bool:
        """Tells whether records of flows are kept, as curves or as recordings."""
        return self.log_dir is not None or self.record is not None


_CURE = "configs/daemon.toml is a commented example"


def load_config(path: Path) -> DaemonConfig:
    """Returns a configuration file's content, checked; raises ConfigError naming file, key and cure.

    ``[daemon]`` holds for every socket; a ``[[policy]]`` says what is otherwise for some.
    """
    document = toml_file.read(path, _CURE)
    entries = document.pop("policy", [])
    if not isinstance(entries, list):
        raise ConfigError(f"{path}: [policy] is one table; write [[policy]], once for each policy")
    if "policies" in document:
        raise ConfigError(f"{path}: unknown key 'policies'; write [[policy]], once for each policy")
    table = document.get("daemon")
    for key in ("policies", "policy"):
        if isinstance(table, dict) and key in table:
            raise ConfigError(f"{path}: unknown key daemon.{key}; write [[policy]] below, once for each policy")
    config = toml_file.check(document, str(path), DaemonConfig, _CURE, table="daemon")
    policies = [
        toml_file.check({"policy": entry}, f"{path}: [[policy]] {index}", PolicyConfig, _CURE, table="policy")
        for index, entry in enumerate(entries, 1)
    ]
    try:
        distinct(policies)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return config.model_copy(update={"policies": tuple(policies)})

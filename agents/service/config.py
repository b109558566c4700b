"""The service's configuration: one TOML file with one table, ``[trainer]``; every key is described here."""

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from reinet.agents.evaluation.no_harm import HarmGate
from reinet.core import toml_file
from reinet.core.toml_file import NamedPath
from reinet.daemon.endpoint import MOST_PORT, is_port, own_socket, socket_path

Role = Literal["submit", "promote", "read"]
NAME = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"


def default_socket() -> Path:
    """Returns where this user's service listens."""
    return own_socket("trainer.sock")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Quota(_Section):
    """What one identity may use; the defaults suit a handful of people on one machine."""

    # A day of LTE recordings at 20 Mbit/s is 1.2 GB of text; a week of drives is far less.
    stored_mb: int = Field(default=2000, ge=1, description="traces that the identity has stored, in MB")
    # As `reinet traces` has it: what is larger is rarely a trace.
    trace_mb: int = Field(default=64, ge=1, le=64, description="one trace, in MB")
    # As much as a daemon keeps of its own by default (daemon.record.most_mb); the oldest make room.
    flows_mb: int = Field(default=256, ge=1, le=1_000_000, description="recorded flows that its daemons sent, in MB")
    # A day of training a week, of the models that docs/training.md tells of.
    job_hours: float = Field(default=24.0, gt=0, description="training time of all its jobs over the last seven days")
    waiting_jobs: int = Field(default=20, ge=1, le=1000, description="jobs that have not ended")


class Identity(_Section):
    """Who may do what, by the common name of a client's certificate."""

    name: str = Field(pattern=NAME, description="the common name in the certificate")
    roles: tuple[Role, ...] = Field(min_length=1, description="submit, promote, read")
    quota: Quota = Quota()


class Tls(_Section):
    """The files of mutual TLS; clients show certificates that ``ca`` signed."""

    ca: NamedPath = Field(description="certificate of who signs clients' certificates (PEM)")
    cert: NamedPath = Field(description="the service's certificate (PEM)")
    key: NamedPath = Field(description="its key (PEM)")


class Gate(_Section):
    """What a model must show before a name points to it."""

    suite: str = Field(default="quick", description="suite of `reinet evaluate --suite`: a name or a TOML file")
    # Three minutes of the quick suite on two cores are most of them other tables than these.
    scenarios: tuple[str, ...] = Field(default=("cellular",), description="scenarios of it; none = all")
    traces: tuple[NamedPath, ...] = Field(default=(), description="hold-out traces; none = what the suite generates")
    repeat: int | None = Field(default=None, ge=1, le=1000, description="repetitions; absent = the suite's")
    # A mean over the suite's pairs moves by some 1 % from draw to draw: a bound at 1 would refuse equals.
    least_throughput: float = Field(default=0.98, gt=0, description="throughput next to the present model's, at least")
    most_delay: float = Field(default=1.05, gt=0, description="queueing delay next to the present model's, at most")
    no_harm: HarmGate = Field(default=HarmGate(), description="what it may cost short transfers")
    minutes: float = Field(default=30.0, gt=0, le=1440, description="the gate is given up after so long")


class TrainerConfig(_Section):
    """The ``[trainer]`` table. Relative paths start at the folder in which the service is started."""

    folder: NamedPath = Field(default=Path("runs/trainer"), description="where jobs, models, traces and state lie")
    socket: NamedPath = Field(default_factory=default_socket, description="Unix socket; only its owner may connect")
    listen: str | None = Field(
        default=None, pattern=r"^[^\s/]+:[0-9]{1,5}$", description="HOST:PORT for clients elsewhere; needs tls"
    )
    tls: Tls | None = Field(default=None, description="files of mutual TLS")
    identities: tuple[Identity, ...] = Field(default=(), description="who may call over TLS, and with which roles")
    quota: Quota = Field(default=Quota(), description="of who calls over the socket")
    gate: Gate = Gate()
    # Ray's own job submission needs a head with its dashboard, 1.7 GB in 18 processes; a small machine does without.
    runner: Literal["ray", "process"] = Field(default="ray", description="ray: its job submission; process: children")
    ray_address: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s/]+$",
        description="job port of a cluster; absent = an own head",
    )
    ray_port: int = Field(default=8265, ge=1024, le=MOST_PORT, description="job port of that head, on loopback")
    # Trainings on one machine only slow each other down.
    jobs: int = Field(default=1, ge=1, le=64, description="jobs that run at once")
    # A job that asks Ray for more than there is would wait for ever.
    workers: int = Field(
        default_factory=lambda: max(os.cpu_count() or 1, 2),
        ge=0,
        le=256,
        description="rollout.workers of a job, at most",
    )
    min_free_mb: int = Field(default=1000, ge=0, description="nothing is accepted while less of the disk is free")

    @field_validator("listen", "ray_address")
    @classmethod
    def _has_a_port(cls, value: str | None) -> str | None:
        port = "" if value is None else value.rpartition(":")[2]
        if port.isdecimal() and not is_port(int(port)):
            raise ValueError(f"{value}: a port lies in 1 to {MOST_PORT}")
        return value

    @field_validator("folder")
    @classmethod
    def _whole(cls, value: Path) -> Path:
        return value.absolute()

    @field_validator("socket")
    @classmethod
    def _fits(cls, value: Path) -> Path:
        return socket_path(value)

    @model_validator(mode="after")
    def _tls_has_all(self) -> "TrainerConfig":
        if self.listen is not None and self.tls is None:
            raise ValueError("listen needs [trainer.tls] with ca, cert and key: nobody is served without a certificate")
        if self.listen is None and (self.tls is not None or self.identities):
            raise ValueError("tls and identities are for listen = HOST:PORT; give it, or take them out")
        names = [one.name for one in self.identities]
        if twice := sorted({one for one in names if names.count(one) > 1}):
            raise ValueError(f"identity {twice[0]} is there twice")
        return self


def load_config(path: Path) -> TrainerConfig:
    """Returns a configuration file's content, checked; raises ConfigError naming file, key and cure."""
    return toml_file.load(path, TrainerConfig, "configs/trainer.toml is a commented example", table="trainer")

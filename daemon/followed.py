"""``model = "registry:NAME"``: a daemon's first model comes from the registry, and every later one by a hot swap."""

import importlib.metadata
import math
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import structlog

from reinet.agents.decide.loop import Status
from reinet.core.errors import DaemonError, ReinetError
from reinet.daemon.config import DaemonConfig
from reinet.daemon.policies import REGISTRY_PREFIX
from reinet.daemon.registry import Address, Follower, fetch, last_known, service_error, stub_of
from reinet.proto import trainer_pb2 as pb

WAIT_S = 30.0
"""A daemon that starts with its host waits so long for a service that starts too."""
ASK_S = 2.0
FETCH_S = 20.0
"""At a start a model is waited for no longer where another one is known: the loader waits for a minute, within which it
hears of that, or why there is none. Where none is known a slow path has what is left of ``WAIT_S`` as well."""

log = structlog.get_logger("reinet.serve")


def resolved(config: DaemonConfig, wait_s: float = WAIT_S) -> DaemonConfig:
    """Returns the configuration with a folder in place of a registry's name; one without such a name as it is.

    The folder is that of what the name points to now, or, where that cannot be had (no service answers, or the disk is
    full), pointed to when it last could. Raises DaemonError where neither is known.
    """
    if not config.model.startswith(REGISTRY_PREFIX):
        return config
    assert config.registry is not None
    name, folder = config.model.removeprefix(REGISTRY_PREFIX), config.registry.folder
    end_s = time.monotonic() + wait_s
    while True:
        known = last_known(folder, name)
        try:
            fetch_s = FETCH_S if known is not None else end_s + FETCH_S - time.monotonic()
            return config.model_copy(update={"model": str(_present(address_of(config), name, folder, fetch_s))})
        except (ReinetError, OSError) as error:
            if known is not None:
                log.warning("what the registry's name points to cannot be had; serving what it pointed to last",
                            model=str(known), why=str(error))  # fmt: skip
                return config.model_copy(update={"model": str(known)})
            if time.monotonic() > end_s:
                raise DaemonError(f"daemon.model = {config.model}: {error}") from None
            time.sleep(min(1.0, wait_s / 10))


def _present(address: Address, name: str, folder: Path, fetch_s: float) -> Path:
    """Returns the folder of what the name points to, fetched within so long and checked; raises a ReinetError or
    OSError."""
    channel = address.channel()
    try:
        stub = stub_of(channel)
        pointer = stub.Resolve(pb.ResolveRequest(name=name), timeout=ASK_S)
        if not pointer.model:
            raise DaemonError(f"the name {name!r} points to no model yet; reinet models promote MODEL --to {name}")
        return fetch(stub, pointer.model, folder, fetch_s)
    except grpc.RpcError as error:
        raise service_error(address, error) from None
    finally:
        channel.close()


def hold_out_figures(status: Status) -> dict[str, float]:
    """Returns what the default policy's hold-out, or its swap's first stage, knows by now; what is unknown is left out.

    ``delay``, ``throughput`` and ``completion`` are those of capped flows over those of plain ones (over the old
    model's, while a swap is under way), with ``_low`` and ``_high``, the ends of the interval, where they are finite.
    """
    if not status.policies:
        return {}
    policy = status.policies[0]
    found: dict[str, float] = {}
    ratios = {name: getattr(policy.comparison, name) for name in ("delay", "throughput", "completion")}
    for name, ratio in ratios.items():
        if math.isfinite(ratio.ratio):
            found |= {name: ratio.ratio, f"{name}_low": ratio.low, f"{name}_high": ratio.high}
    delay = policy.comparison.delay
    if delay.capped_flows or delay.plain_flows:
        found |= {"capped_flows": float(delay.capped_flows), "plain_flows": float(delay.plain_flows)}
    found |= {"stood_down": 1.0} if policy.stood_down else {}
    found |= {"quarantined": 1.0} if policy.quarantined else {}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def follow(
    config: DaemonConfig,
    running: str,
    take: Callable[[Path, str], None],
    status: Callable[[], Status] | None = None,
) -> Callable[[], None]:
    """Begins to follow the configuration's name; returns what ends that.

    ``running`` is the sha256 of what decides already; ``take`` puts another model, in its folder and with its sha256,
    into the decision loop, and raises a ReinetError where that refuses. ``status`` is how the loop is: the figures of
    its hold-out are reported.
    """
    where = config.registry
    if not config.model.startswith(REGISTRY_PREFIX) or where is None:
        return lambda: None

    def taken(folder: Path, sha256: str) -> None:
        take(folder, sha256)
        log.info("swapped to what the registry's name points to", model=str(folder))

    follower = Follower(
        address_of(config),
        config.model.removeprefix(REGISTRY_PREFIX),
        daemon=where.called,
        folder=where.folder,
        swap=taken,
        version=importlib.metadata.version("reinet"),
        figures=dict if status is None else lambda: hold_out_figures(status()),
        running=running,
    )
    follower.start()
    return follower.close


def address_of(config: DaemonConfig) -> Address:
    """Returns where the service of ``[daemon.registry]`` is."""
    where = config.registry
    assert where is not None
    return Address(where.address, where.ca, where.cert, where.key)

"""``reinet doctor``: every prerequisite, its state and its cure; and what a killed daemon may have left behind."""

import os
import platform
import shutil
import stat
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import typer

from reinet.agents.service.running.ray_left import ray_processes_left
from reinet.cli.output import JsonOption, say, write_json
from reinet.core.errors import DaemonError, LinkError
from reinet.core.visible import some_of
from reinet.daemon.endpoint import own_socket
from reinet.daemon.processes.claim import stale_sockets
from reinet.daemon.processes.sandbox import library
from reinet.envs.mahimahi.namespace import CAPABILITIES, CAPABILITIES_CURE, stale_cgroups
from reinet.envs.mahimahi.process import helper_folder
from reinet.kshim.leftovers import CONTROL, holders, leftovers, on_their_way, why_not_looked
from reinet.kshim.probe import Feature, cgroup2_mount, features, missing_capabilities

RUN_ON = {("debian", "12"), ("debian", "13")}
"""Systems on which the whole set-up has been run."""
WRITTEN_FOR = {("ubuntu", "22.04"), ("ubuntu", "24.04")}
"""Systems that the set-up was written for and nobody has run it on yet."""
PYTHON_RUN = {(3, 11), (3, 13)}

SETUP = "run docker/setup.sh (or make demo)"
PACKAGES = "run docker/packages.sh as root or with sudo"
BENCH_PACKAGES = "run docker/packages.sh --bench as root or with sudo"


def _system() -> Feature:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    name = f"{release.get('NAME', 'unknown')} {release.get('VERSION_ID', '')}".strip()
    key = (release.get("ID", ""), release.get("VERSION_ID", ""))
    if key in RUN_ON:
        return Feature(True, f"{name}: set-up has been run on it")
    if key in WRITTEN_FOR:
        return Feature(True, f"{name}: set-up is written for it, not run")
    return Feature(
        False, f"{name}: set-up does not know it", "use Debian 12 or 13, or install the list in docker/packages.sh"
    )


def _python() -> Feature:
    here = sys.version_info[:2]
    text = f"Python {platform.python_version()}"
    if not (3, 10) <= here <= (3, 13):
        return Feature(False, f"{text} is outside 3.10-3.13", "set PYTHON=python3.11 and run docker/setup.sh")
    return Feature(True, text if here in PYTHON_RUN else f"{text}: resolved, not run")


def _package(name: str, purpose: str, extra: str) -> Feature:
    try:
        return Feature(True, f"{name} {version(name)}, for {purpose}")
    except PackageNotFoundError:
        return Feature(False, f"{name} is not installed, needed for {purpose}", f"pip install 'reinet[{extra}]'")


def _program(name: str, purpose: str, *, setuid: bool = False, cure: str = PACKAGES) -> Feature:
    # Debian keeps administrators' programs out of other users' PATH.
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if path is None:
        return Feature(False, f"{name} not found, needed for {purpose}", cure)
    if setuid and not Path(path).stat().st_mode & stat.S_ISUID:
        return Feature(False, f"{path} is not setuid root, and Mahimahi refuses to start without", PACKAGES)
    return Feature(True, path)


def _link_privileges() -> Feature:
    if missing := missing_capabilities(CAPABILITIES):
        return Feature(False, f"this process lacks {', '.join(missing)}", CAPABILITIES_CURE)
    return Feature(True, f"has {', '.join(CAPABILITIES)}")


def _tun() -> Feature:
    if Path("/dev/net/tun").exists():
        return Feature(True, "/dev/net/tun")
    return Feature(False, "/dev/net/tun is missing", "modprobe tun; in a container pass --device /dev/net/tun")


def _processors_awake() -> Feature:
    device = "/dev/cpu_dma_latency"
    if Path(device).exists():
        return Feature(True, f"{device}, which keeps processors awake while a link is up")
    return Feature(True, f"no {device}: a link may lag more often (in a container pass --device {device})")


def _helpers() -> Feature:
    try:
        return Feature(True, f"built: {helper_folder()}")
    except LinkError as error:
        return Feature(False, str(error), SETUP)


def prerequisites() -> dict[str, Feature]:
    """Returns everything that some part of reinet needs, by name."""
    serving, answering, training = "the daemon", "the daemon and the training service", "training"
    found = {
        "system": _system(),
        "python": _python(),
        "onnxruntime": _package("onnxruntime", serving, "serve"),
        "grpcio": _package("grpcio", serving, "serve"),
        "grpcio-health-checking": _package("grpcio-health-checking", answering, "serve"),
        "grpcio-reflection": _package("grpcio-reflection", answering, "serve"),
        "prometheus-client": _package("prometheus-client", "the daemon's metrics", "serve"),
        "tensorboard": _package("tensorboard", "TensorBoard logs", "serve"),
        "onnx": _package("onnx", "models", "serve"),
        "safetensors": _package("safetensors", "checkpoints", "serve"),
        "cma": _package("cma", "evolution", "train"),
        "torch": _package("torch", training, "train"),
        "ray": _package("ray", training, "train"),
        "matplotlib": _package("matplotlib", "pictures", "train"),
    }
    found["seccomp"] = _seccomp()
    found |= {f"kernel.{name}" if not name.startswith("kernel") else name: f for name, f in features().items()}
    found |= {
        "mahimahi.privileges": _link_privileges(),
        "mahimahi.mm-link": _program("mm-link", "real-kernel environments", setuid=True),
        "mahimahi.mm-delay": _program("mm-delay", "real-kernel environments", setuid=True),
        "mahimahi.mm-loss": _program("mm-loss", "real-kernel links that lose packets", setuid=True),
        "mahimahi.iptables": _program("xtables-legacy-multi", "Mahimahi's address translation"),
        "mahimahi.nsenter": _program("nsenter", "entering the namespaces of a link"),
        "mahimahi.setpriv": _program("setpriv", "running Mahimahi without root's rights"),
        "mahimahi.tun": _tun(),
        "mahimahi.processors": _processors_awake(),
        "mahimahi.helpers": _helpers(),
        "harm.nginx": _program("nginx", "reinet bench harm --link mahimahi", cure=BENCH_PACKAGES),
        "harm.curl": _program("curl", "reinet bench harm --link mahimahi", cure=BENCH_PACKAGES),
        "harm.ip": _program("ip", "reinet bench harm --link mahimahi", cure=BENCH_PACKAGES),
        "alcc.openvpn": _program("openvpn", "reinet bench alcc --against tunnel", cure=BENCH_PACKAGES),
        "alcc.javac": _program("javac", "reinet bench alcc --against java", cure=BENCH_PACKAGES),
    }
    found["leftovers"] = _leftovers()
    found["leftovers.sockets"] = _sockets()
    found["leftovers.cgroups"] = _cgroups()
    found["leftovers.ray"] = _ray()
    return found


def _seccomp() -> Feature:
    try:
        library()
    except DaemonError as error:
        return Feature(False, str(error), PACKAGES)
    return Feature(True, "libseccomp, for the daemon's confined processes")


def _leftovers() -> Feature:
    if reason := why_not_looked():
        return Feature(False, f"cannot look for what a run left behind: {reason}", "run as root")
    left = leftovers()
    if not left:
        return Feature(True, "nothing of reinet is left in this host's kernel")
    kept = some_of(holders(left), "; ") or "sockets closed with data unsent, or not connected any more"
    if all(item.name == CONTROL for item in left):
        kept = "sockets that are not looked for, since a shim lives whose process is not seen from here"
    if on_their_way(left):
        return Feature(
            True,
            f"left by a run that has ended, inert: {some_of(left, '; ')}; on {kept}, which go back to their own "
            "congestion control at their next ACK of data (`reinet ctl detach` does not wait for it; BBR then begins "
            "anew)",
        )
    return Feature(False, f"left by a run that has ended, inert: {some_of(left, '; ')}; held by {kept}",
                   "reinet ctl detach")  # fmt: skip


def _sockets() -> Feature:
    folder = own_socket("control.sock").parent
    left = stale_sockets(folder)
    if not left:
        return Feature(True, f"no socket is left in {folder} of a daemon that was killed")
    paths = some_of(left, " ")
    return Feature(
        True, f"sockets of a daemon that was killed: {paths} (`reinet ctl detach` removes them, or the next one does)"
    )


def _cgroups() -> Feature:
    mount = cgroup2_mount()
    left = stale_cgroups(mount) if mount else []
    if not left:
        return Feature(True, "no cgroup is left of a run that was killed")
    paths = some_of(left, " ")
    return Feature(True, f"empty cgroups of runs that were killed: {paths} (rmdir them, or the next run does)")


def _ray() -> Feature:
    left = ray_processes_left()
    if not left:
        return Feature(True, "no process is left of a Ray whose training was killed")
    named = some_of([f"{process.pid} {process.name}" for process in left])
    return Feature(True, f"left of a Ray whose program was killed: {named} (kill them, or they end within two minutes)")


def doctor(json_destination: JsonOption = None) -> None:
    """Check every prerequisite on this machine, and say how to mend what is missing.

    Exits 1 when something is missing. Examples:

        reinet doctor

        reinet doctor --json - | jq '.features | map_values(.ok)'
    """
    found = prerequisites()
    write_json(json_destination, {"features": {name: feature._asdict() for name, feature in found.items()}})
    if json_destination != "-":
        for name, feature in found.items():
            mark = ("yes", "green") if feature.ok else ("no ", "bold red")
            say(mark, f"  {name:28}{feature.why}")
            if not feature.ok:
                say(f"     {'cure:':>23} ", (feature.cure, "bold"))
        missing = [name for name, feature in found.items() if not feature.ok]
        say("All there." if not missing else f"Missing: {', '.join(missing)}.")
    if not all(feature.ok for feature in found.values()):
        raise typer.Exit(1)

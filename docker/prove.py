#!/usr/bin/env python3
"""Follows a Dockerfile's steps in a bare Debian 12 that debootstrap makes, where no container engine runs.

::

    sudo docker/prove.py docker/train.Dockerfile
    sudo docker/prove.py docker/serve.Dockerfile --service daemon --check "reinet ctl health"

Every stage is a folder of its own; RUN happens in it, by chroot, in mount and pid namespaces of its own. Then the
image's command runs. With ``--service`` it does so as the compose file says: its capabilities, no_new_privs, read-only
root, volumes; ``--check`` is a command in the same container that has to succeed while the service runs, which then has
to end by SIGTERM with status 0. It needs root, debootstrap and the network, writes below ``--folder`` alone, and is no
container engine: no layers, no cache, the host's network and users.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import string
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MIRROR = "http://deb.debian.org/debian"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KNOWN = ("FROM", "COPY", "WORKDIR", "RUN", "ENV", "ENTRYPOINT", "CMD")
BASES = {"debian:12": "bookworm", "debian:12-slim": "bookworm"}
PASSED_ON = re.compile(r"(?i)pip_.*|.*_proxy")
"""Where this host finds packages; an engine is told so by ``--build-arg`` and its own configuration."""
START_S = 120.0
STOP_S = 20.0


class StepError(Exception):
    """A step that failed, or one that this program does not know."""


@dataclass
class Stage:
    """An image while it is made."""

    folder: Path
    name: str = ""
    work: str = "/"
    env: dict[str, str] = field(default_factory=dict)
    entry: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)


def steps(text: str) -> list[tuple[int, str, str]]:
    """Returns the line, the instruction and the rest of each step of a Dockerfile; raises StepError for another one."""
    found: list[tuple[int, str, str]] = []
    pending, begun = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or not (line.strip() or pending):
            continue
        begun = begun if pending else number
        pending += line.rstrip()
        if pending.endswith("\\"):
            pending = pending[:-1]
            continue
        word, _, rest = pending.strip().partition(" ")
        if word not in KNOWN:
            raise StepError(f"line {begun}: {word} is not known here, only {', '.join(KNOWN)}")
        found.append((begun, word, rest.strip()))
        pending = ""
    return found


def words(text: str) -> list[str]:
    """Returns a command as Docker reads it: JSON, or a line for the shell."""
    return json.loads(text) if text.startswith("[") else ["/bin/sh", "-c", text]


class Builder:
    """Makes the stages of one Dockerfile below a folder."""

    def __init__(self, folder: Path, binds: list[str]) -> None:
        self._folder, self._binds = folder, binds
        self._stages: list[Stage] = []
        self._again = False

    def build(self, dockerfile: Path, again: bool = False) -> Stage:
        """Follows every step and returns the last stage; raises StepError with file and line.

        ``again`` takes the folders as an earlier run left them and does nothing that changes one.
        """
        self._again = again
        for line, word, rest in steps(dockerfile.read_text()):
            print(f"{dockerfile.name}:{line}: {word} {rest}", flush=True)
            began_s = time.monotonic()
            try:
                self._follow(word, rest)
            except (StepError, subprocess.CalledProcessError, OSError) as error:
                raise StepError(f"{dockerfile}:{line}: {word}: {error}") from None
            print(f"    done in {time.monotonic() - began_s:.0f} s", flush=True)
        return self._stages[-1]

    def _follow(self, word: str, rest: str) -> None:
        if word == "FROM":
            self._stages.append(self._begin(rest))
            return
        stage = self._stages[-1]
        if self._again and word in ("COPY", "RUN"):
            return
        if word == "COPY":
            self._copy(stage, rest)
        elif word == "RUN":
            self.run(stage, words(rest))
        elif word == "WORKDIR":
            stage.work = os.path.join(stage.work, rest)
            inside(stage, rest).mkdir(parents=True, exist_ok=True)
        elif word == "ENV":
            for part in shlex.split(rest):
                name, _, value = part.partition("=")
                stage.env[name] = string.Template(value).safe_substitute({"PATH": SYSTEM_PATH, **stage.env})
        elif word == "ENTRYPOINT":
            stage.entry = words(rest)
        else:
            stage.command = words(rest)

    def _begin(self, rest: str) -> Stage:
        image, *named = rest.split()
        if image not in BASES:
            raise StepError(f"{image} is not known here, only {', '.join(BASES)}")
        base = self._folder / BASES[image]
        if not (base / "etc/os-release").exists():
            partial = base.with_name(f"{base.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            run(["debootstrap", "--variant=minbase", BASES[image], str(partial), MIRROR])
            partial.rename(base)
        folder = self._folder / f"stage-{len(self._stages)}"
        if self._again:
            return Stage(folder, named[1] if named else "")
        shutil.rmtree(folder, ignore_errors=True)
        run(["cp", "-a", "--reflink=auto", str(base), str(folder)])
        shutil.copy("/etc/resolv.conf", folder / "etc/resolv.conf")
        return Stage(folder, named[1] if named else "")

    def _copy(self, stage: Stage, rest: str) -> None:
        *sources, target = rest.split()
        place = inside(stage, target)
        if sources[0].startswith("--from="):
            name = sources.pop(0).removeprefix("--from=")
            origin = next((one.folder for one in self._stages if one.name == name), None)
            if origin is None:
                raise StepError(f"there is no stage {name}")
            left_out: list[str] = []
        else:
            origin, left_out = ROOT, (ROOT / ".dockerignore").read_text().split()
        for source in sources:
            found = origin / source.lstrip("/")
            place.mkdir(parents=True, exist_ok=True)
            pack = ["tar", "-C", str(found), *(f"--exclude=./{name}" for name in left_out), "-cf", "-", "."]
            copy = f"{shlex.join(pack)} | {shlex.join(['tar', '-C', str(place), '-xf', '-'])}"
            run(["bash", "-o", "pipefail", "-c", copy])

    def run(self, stage: Stage, command: list[str]) -> None:
        """Runs a command in a stage; raises CalledProcessError."""
        run(contained(stage, command, self._binds))


def inside(stage: Stage, path: str) -> Path:
    """Returns where a path of an image lies on this host."""
    return stage.folder / os.path.join(stage.work, path).lstrip("/")


def contained(stage: Stage, command: list[str], binds: list[str], service: dict[str, Any] | None = None) -> list[str]:
    """Returns the command line that runs a command in an image, as a service of the compose file if one is given."""
    root = shlex.quote(str(stage.folder))
    lines = ["set -e", "mount --make-rprivate /", f"mount --bind {root} {root}"]
    if service and service.get("read_only"):
        lines.append(f"mount -o remount,bind,ro {root}")
    lines += [f"mount -t proc proc {root}/proc", f"mount --bind /dev {root}/dev"]
    lines += [f"mount --bind /sys {root}/sys", f"mount -t tmpfs tmpfs {root}/tmp"] if service else []
    for bind in binds:
        lines.append(_mounted(bind, bind, root, read_only=True))
    for volume in service.get("volumes", []) if service else []:
        source, target, *options = volume.split(":")
        if target == "/sys/fs/cgroup":  # whatever this host has there; hosts that an operator has are unified
            lines.append(f"mount -t cgroup2 cgroup2 {root}{target}")
        elif source.startswith(("/", ".")):
            lines.append(_mounted(str((ROOT / "docker" / source).resolve()), target, root, "ro" in options))
        else:  # a volume of the engine's own
            lines.append(f"mount -t tmpfs tmpfs {root}{target}")
    confine = []
    if service:
        added = [f"+{name.lower()}" for name in service.get("cap_add", [])]
        confine = ["setpriv", "--bounding-set", ",".join(["-all", *added]), "--inh-caps", "-all"]
        confine += ["--no-new-privs"] if "no-new-privileges:true" in service.get("security_opt", []) else []
    env = {"PATH": SYSTEM_PATH, "HOME": "/root", **stage.env}
    env |= {} if service else {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}
    shell = f"cd {shlex.quote(stage.work)} && exec {shlex.join([*confine, *command])}"
    chroot = ["chroot", str(stage.folder), "env", "-i", *(f"{name}={value}" for name, value in env.items())]
    lines.append(f"exec {shlex.join([*chroot, '/bin/sh', '-c', shell])}")
    apart = (
        ["--mount"] if service else ["--mount", "--pid", "--fork", "--kill-child"]
    )  # the service is the host's pid's
    return ["unshare", *apart, "bash", "-c", "\n".join(lines)]


def _mounted(source: str, target: str, root: str, read_only: bool = False) -> str:
    place = f"{root}{shlex.quote(target)}"
    source = shlex.quote(source)
    new = f"if [ -d {source} ]; then mkdir -p {place}; else mkdir -p $(dirname {place}); touch {place}; fi"
    return f"[ -e {place} ] || {new}; mount --bind {source} {place}" + (
        f"; mount -o remount,bind,ro {place}" if read_only else ""
    )


def run(command: list[str]) -> None:
    """Runs a command; raises CalledProcessError."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def serve(stage: Stage, name: str, check: str) -> None:
    """Runs the image as a service of the compose file until the check has succeeded; raises StepError."""
    import yaml

    service: dict[str, Any] = yaml.safe_load((ROOT / "docker/compose.yml").read_text())["services"][name]
    for volume in service.get("volumes", []):  # an engine makes both ends before the root turns read-only
        source, target = volume.split(":")[:2]
        place = inside(stage, target)
        if source.startswith("/"):
            Path(source).mkdir(parents=True, exist_ok=True)
        if Path(ROOT, "docker", source).is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        else:
            place.mkdir(parents=True, exist_ok=True)
    command = [*stage.entry, *(service.get("command") or stage.command)]
    slice_made = _make_slice()
    print(f"service {name}: {shlex.join(command)}", flush=True)
    process = subprocess.Popen(contained(stage, command, [], service), stdin=subprocess.DEVNULL)
    try:
        until_s = time.monotonic() + START_S
        while subprocess.run(
            ["nsenter", f"--target={process.pid}", "--mount", "--root", "--wd", "env", "-i",
             f"PATH={SYSTEM_PATH}", "/bin/sh", "-c", check], stdin=subprocess.DEVNULL,
        ).returncode:  # fmt: skip
            if process.poll() is not None or time.monotonic() > until_s:
                raise StepError(f"service {name}: {check!r} does not succeed; it ended with {process.poll()}")
            time.sleep(1.0)
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith(("CapBnd", "CapEff", "NoNewPrivs")):
                print(f"    {line}")
        process.send_signal(signal.SIGTERM)
        if status := process.wait(STOP_S):
            raise StepError(f"service {name}: it ended with status {status}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if slice_made is not None:
            slice_made.rmdir()
    print(f"service {name}: {check!r} succeeded, and it ended by SIGTERM with status 0")


def _make_slice() -> Path | None:
    """Makes the cgroup that the compose file's configuration names, where the host has none; returns it then."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    mount = next((Path(words[1]) for words in mounts if words[2] == "cgroup2"), None)
    if mount is None:
        raise StepError("no cgroup v2 hierarchy is mounted on this host")
    if (found := mount / "reinet.slice").exists():
        return None
    found.mkdir()
    return found


def main() -> None:
    """Follows the Dockerfile that the command line names."""
    summary, _, usage = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=usage, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dockerfile", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp/reinet-prove"), help="where stages are made")
    parser.add_argument("--again", action="store_true", help="only run the service, of the stages that are there")
    parser.add_argument(
        "--bind", action="append", default=[], metavar="PATH", help="a path of this host's, to be read by RUN"
    )
    parser.add_argument("--service", metavar="NAME", help="run the image as this service of docker/compose.yml")
    parser.add_argument("--check", default="true", metavar="COMMAND", help="what has to succeed in it meanwhile")
    asked = parser.parse_args()
    if os.geteuid():
        sys.exit("this needs root, for chroot and mounts: sudo docker/prove.py ...")
    asked.folder.mkdir(parents=True, exist_ok=True)
    builder = Builder(asked.folder.resolve(), asked.bind)
    try:
        stage = builder.build(asked.dockerfile, asked.again)
        if asked.service:
            serve(stage, asked.service, asked.check)
        else:
            builder.run(stage, [*stage.entry, *stage.command])
    except StepError as error:
        sys.exit(f"{error}")
    print(f"{asked.dockerfile}: every step succeeded")


if __name__ == "__main__":
    main()

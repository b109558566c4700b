"""What a program is started with so that it runs under the gate, and which programs cannot be."""

import os
import shutil
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reinet.core.errors import ConfigError
from reinet.core.target import Target

ENVIRONMENT = "REINET_ALCC"
"""The variable that the gate reads; ``alcc/laws/settings.hpp`` has the grammar."""
PRELOAD = "libreinet_alcc_preload.so"

_MOST_INTERPRETERS = 4
"""The kernel follows so many ``#!`` lines, one after the other."""


@dataclass(frozen=True)
class Law:
    """What decides in the process."""

    name: str
    """As agents are called: ``none``, ``fixed:N``, ``rule:G`` or a model's folder; or one of ``_alcc.law_names()``."""
    model: str = ""
    """A learned law's network, ``model.text_of``; empty for the others, whose name says all."""
    daemon: Path | None = None
    """The socket of the daemon that decides; then the name is ``daemon``."""

    @property
    def text(self) -> str:
        """Returns the law as ENVIRONMENT says it."""
        return "policy" if self.model else self.name


@dataclass(frozen=True)
class Settings:
    """What the gate is asked to do."""

    law: Law
    target: Target
    ports: Sequence[int] = ()
    """Only connections with one of these ports at either end are gated; empty = all."""
    shadow: bool = False
    """Decide and count, gate nothing."""
    always: bool = False
    """Cap before a queue was seen, too: for tests and measurements."""
    shared_uplink: bool = False
    """All connections wait in one queue, that of the host's own link, whoever their peers are."""
    no_io_uring: bool = False
    """Whoever asks for an io_uring by the C library's ``syscall`` gets ENOSYS."""
    report: Path | None = None
    """Of the memory in which processes add up what they come to, ``sums.Sums.path``."""
    records: Path | None = None
    """FlowStats records are appended as they come."""

    def text(self) -> str:
        """Returns the value of ENVIRONMENT. Raises ConfigError for a path that it cannot carry."""
        slope, extra_us = self.target.line()
        parts = [f"law={self.law.text}", f"target={slope:g}:{extra_us}"]
        if self.law.model:
            parts.append(f"model={self.law.model}")
        if self.ports:
            parts.append("ports=" + ",".join(map(str, self.ports)))
        if self.law.daemon is not None:
            parts.append(f"daemon={_told('daemon', self.law.daemon)}")
        parts += [f"{name}=1" for name in ("shadow", "always", "shared_uplink", "no_io_uring") if getattr(self, name)]
        for name in ("report", "records"):
            if (path := getattr(self, name)) is not None:
                parts.append(f"{name}={_told(name, path)}")
        return " ".join(parts)

    def environment(self) -> dict[str, str]:
        """Returns the environment of the command: this process's, the preload and what it reads."""
        return {**os.environ, **self.variables()}

    def variables(self) -> dict[str, str]:
        """Returns what of it is the gate's: the preload and what that reads."""
        library = str(find_preload())
        before = os.environ.get("LD_PRELOAD", "")
        # The last one: sanitizers refuse to run unless they are the first.
        return {"LD_PRELOAD": f"{before}:{library}" if before else library, ENVIRONMENT: self.text()}


def _told(name: str, path: Path) -> Path:
    if " " in str(path.absolute()):
        raise ConfigError(
            f"{name} {str(path)!r}: a path with a space cannot be told to the command; choose another, for temporary "
            "files by TMPDIR"
        )
    return path.absolute()


def parse_ports(text: str | None) -> tuple[int, ...]:
    """Returns the ports of ``80,443``; empty for None. Raises ConfigError."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part) <= 65535 for part in parts):
        raise ConfigError(f"ports {text!r}: write numbers from 1 to 65535 separated by commas, as 80,443")
    return tuple(map(int, parts))


def find_preload() -> Path:
    """Returns the library that is preloaded. Raises ConfigError where it was not built or cannot be named."""
    import reinet.alcc

    for folder in reinet.alcc.__path__:
        path = Path(folder) / "lib" / PRELOAD
        if path.is_file():
            if set(str(path)) & set(" :"):
                raise ConfigError(
                    f"{path}: LD_PRELOAD cannot name a path with a space or colon; install reinet elsewhere"
                )
            return path
    raise ConfigError(f"{PRELOAD} was not built; it needs Linux, a C++20 compiler and docker/setup.sh run again")


def check_command(name: str) -> Path:
    """Returns the program that a command's first word starts. Raises ConfigError for one that cannot be preloaded."""
    found = shutil.which(name)
    if found is None:
        raise ConfigError(f"{name}: {_why_not_found(name)}")
    path = Path(found)
    for _ in range(_MOST_INTERPRETERS):
        head = _read(path, 4096)
        if not head.startswith(b"#!"):
            break
        words = os.fsdecode(head[2:].split(b"\n", 1)[0]).split()
        _refuse_privileged(path, name)
        if not words:
            raise ConfigError(f"{path}: its first line names no interpreter")
        if Path(words[0]).name == "env" and (asked := _program_of_env(words[1:])):
            words = [shutil.which(asked) or asked]
        path = Path(words[0])
        if not path.is_file():
            raise ConfigError(f"{name}: its interpreter {path} does not exist")
    why = why_not_preloaded(path)
    if why:
        raise ConfigError(f"{path} {why}")
    return Path(found)


def _why_not_found(name: str) -> str:
    """Returns why a name starts nothing, with a cure; one without a slash is looked for in PATH alone."""
    if "/" in name and os.path.isdir(name):
        return "is a folder; name a program in it"
    if "/" in name and os.path.exists(name):
        return "may not be executed; chmod +x it, or name its interpreter before it"
    return "there is no such program; check the spelling and PATH"


def why_not_preloaded(path: Path) -> str | None:
    """Returns why the loader would not preload into this program, or to no avail, with a cure; None = it would."""
    _refuse_privileged(path, str(path))
    data = _read(path)
    if not data.startswith(b"\x7fELF"):
        return "is neither a Linux program nor a script: give the program itself"
    try:
        return _why_elf_is_not_preloaded(data)
    except (IndexError, struct.error):
        return "breaks off: it is no whole Linux program; install it again"


def _read(path: Path, most_bytes: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(most_bytes)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}, so that nobody can say whether it can be preloaded") from None


def _program_of_env(words: list[str]) -> str | None:
    """Returns what ``env`` starts, past its options and the variables that it sets."""
    waiting = iter(words)
    for word in waiting:
        if word in ("-u", "--unset", "-C", "--chdir"):
            next(waiting, None)
        elif not word.startswith("-") and "=" not in word:
            return word
    return None


def _why_elf_is_not_preloaded(data: bytes) -> str | None:
    if data[4] != 2 or data[5] != 1:
        return "is no 64-bit little-endian program, and the preload is: run a build for this machine"
    (program_at,) = struct.unpack_from("<Q", data, 32)  # e_phoff
    program_size, programs = struct.unpack_from("<HH", data, 54)  # e_phentsize, e_phnum
    interpreter = None
    go = b"\xff Go buildinf:" in data
    for i in range(programs):
        kind, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", data, program_at + i * program_size)
        if kind == 3:  # PT_INTERP
            interpreter = data[offset : offset + size].rstrip(b"\0").decode(errors="replace")
        if kind == 4 and data[offset + 12 : offset + 16] == b"Go\0\0":  # PT_NOTE
            go = True
    if go:
        return (
            "is a Go program, which calls the kernel without the C library: put a gated proxy in front of it, such as "
            "reinet run -- nginx, or cap it in the kernel (reinet serve)"
        )
    if interpreter is None:
        return (
            "is statically linked, so nothing can be preloaded: use a dynamically linked build, or cap it in the "
            "kernel (reinet serve)"
        )
    if "musl" in interpreter:
        return (
            f"runs on musl ({interpreter}), and the preload on the GNU C library: use a glibc image, or cap it in the "
            "kernel (reinet serve)"
        )
    return None


def _refuse_privileged(path: Path, name: str) -> None:
    status = path.stat()
    other_user = status.st_mode & stat.S_ISUID and status.st_uid != os.geteuid()
    other_group = status.st_mode & stat.S_ISGID and status.st_gid != os.getegid()
    try:
        capabilities = os.geteuid() != 0 and bool(os.getxattr(path, "security.capability"))
    except OSError:
        capabilities = False
    if other_user or other_group or capabilities:
        raise ConfigError(
            f"{name} is setuid, setgid or has capabilities, and the loader ignores LD_PRELOAD for such programs: start "
            "it as the user that it becomes, or cap it in the kernel (reinet serve)"
        )

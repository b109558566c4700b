"""The Java client (``alcc/java/``): how it is compiled and started. It is experimental and was never run on Android."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from reinet.core.errors import ReinetError

SOURCES = Path(__file__).parent / "java"
PACKAGE = "reinet.alcc"
JAVAC = ("javac", "--release", "8", "-Xlint:all,-options", "-Werror")
"""Android's tools take Java 8. Later compilers warn of that release itself, which is the one warning left out."""
JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx64m", "-XX:-UsePerfData")
"""It is small and starts quickly; a transfer keeps some 300 KB. Its performance counters would be a file in /tmp."""
_CURE = "install a JDK (docker/packages.sh --bench does, as root)"


def compile_client(folder: Path, more: Sequence[Path] = ()) -> Path:
    """Compiles the client, and ``more`` sources with it, into a folder, and returns that.

    Raises ReinetError without a compiler, or with what it says.
    """
    if shutil.which(JAVAC[0]) is None:
        raise ReinetError(f"javac is not installed, which the Java client needs: {_CURE}")
    sources = [*sorted(SOURCES.glob("*.java")), *more]
    done = subprocess.run(
        [*JAVAC, "-d", str(folder), *map(str, sources)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise ReinetError(f"the Java client in {SOURCES} does not compile: {done.stdout.strip()}")
    return folder


def command(classes: Path, main: str = "Main", *words: str) -> list[str]:
    """Returns the command that runs a class of the client. Raises ReinetError without a Java of this machine."""
    java = shutil.which("java")
    if java is None:
        raise ReinetError(f"java is not installed: {_CURE}")
    return [java, *JVM, "-cp", f"{classes}:{SOURCES}", f"{PACKAGE}.{main}", *words]

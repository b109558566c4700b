"""What ``jobs`` and ``models`` share: where the service is, and how long ago something was."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reinet.cli.serving import needs_serve_extra

if TYPE_CHECKING:
    from reinet.agents.service.client import Client

_PEM = "PEM file, for HOST:PORT."
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--trainer",
        metavar="ADDRESS",
        envvar="REINET_TRAINER",
        help="The service: unix:PATH or HOST:PORT; default: this user's socket.",
    ),
]
CaOption = Annotated[
    Path | None,
    typer.Option("--ca", envvar="REINET_TRAINER_CA", help=f"Certificate of who signed the service's: {_PEM}"),
]
CertOption = Annotated[
    Path | None, typer.Option("--cert", envvar="REINET_TRAINER_CERT", help=f"This client's certificate: {_PEM}")
]
KeyOption = Annotated[Path | None, typer.Option("--key", envvar="REINET_TRAINER_KEY", help=f"Its key: {_PEM}")]

_reached: dict[str, Any] = {}


def reach(trainer: AddressOption = None, ca: CaOption = None, cert: CertOption = None, key: KeyOption = None) -> None:
    """Remembers where the service is, for the command that follows."""
    _reached.update(address=trainer, ca=ca, cert=cert, key=key)


def client() -> "Client":
    """Returns a client of the service."""
    with needs_serve_extra():
        from reinet.agents.service.client import Client
    return Client(**_reached)


def ago(when_s: float) -> str:
    """Returns how long ago a time was, in words."""
    return span(max(time.time() - when_s, 0.0)) + " ago"


def span(seconds: float | None) -> str:
    """Returns a time in its two largest units."""
    if seconds is None:
        return ""
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest_s} s" if minutes else f"{rest_s} s"

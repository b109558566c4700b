"""``reinet send``: a law of the simulator over UDP, outside it."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from reinet.cli.output import JsonOption, say, write_json
from reinet.core.errors import ConfigError, TransferError

DEFAULT_S = 10.0
"""Long enough to see a law settle, short enough to wait for."""


def send(
    address: Annotated[str | None, typer.Argument(metavar="HOST:PORT", help="Where a receiver listens.")] = None,
    udp: Annotated[
        bool, typer.Option("--udp", help="Over UDP, with an ACK of every packet; there is no other.")
    ] = False,
    listen: Annotated[
        str | None, typer.Option(metavar="[ADDRESS:]PORT", help="Receive one transfer there instead of sending one.")
    ] = None,
    law: Annotated[str, typer.Option(metavar="LAW", help="copa, copa-default, verus or sprout.")] = "copa",
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="How long it sends (default: 10, or with --file until all of it has gone). With --listen, how long "
            "it waits for a sender (default: 10).",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Send this file, or with --listen write what comes to it; without, noise is sent and dropped.",
        ),
    ] = None,
    json_destination: JsonOption = None,
) -> None:
    """Send over UDP as a published congestion control does, and report throughput and delay.

    This is the transport that these laws are published with, to compare `reinet run --law` with it: it has its own
    sequence numbers, an ACK for every packet, and sends lost packets again. The receiver takes one transfer, and
    answers nobody without a handshake. Nothing is encrypted. If a file was cut short both ends say so and exit with 1.
    Examples:

        reinet send --udp --listen 5000 --seconds 60

        reinet send --udp --law copa 10.0.0.2:5000 --seconds 30 --json -

        reinet send --udp --law verus 10.0.0.2:5000 --file big.iso
    """
    from reinet.alcc.datagrams import MOST_SECONDS, Receiver, parse_address, read_input
    from reinet.alcc.datagrams import send as send_to

    if not udp:
        raise ConfigError("reinet send goes over UDP: say so with --udp; over TCP use reinet run --law copa -- COMMAND")
    if (address is None) == (listen is None):
        raise ConfigError("give either HOST:PORT to send to, or --listen PORT to receive")
    if listen is not None:
        seconds = DEFAULT_S if seconds is None else seconds
        if not 0 < seconds <= MOST_SECONDS:
            raise ConfigError(f"--seconds {seconds:g}: wait for more than 0 and at most {MOST_SECONDS:g} s")
        with Receiver(parse_address(listen, "0.0.0.0")) as receiver, _output(file) as out_fd:
            received = receiver.receive(seconds, out_fd)
        say(
            f"{received.received_bytes / 1e6:.2f} MB from {received.peer} in {received.seconds:.1f} s, "
            f"{received.throughput_mbps:.2f} Mbit/s, {received.cpu_s:.2f} s of CPU"
        )
        write_json(json_destination, asdict(received))
        if received.cut_short:
            raise TransferError(f"{received.peer} had more to send, and no time for it: the data is cut short")
        return
    assert address is not None
    data = None if file is None else read_input(file)
    sent = send_to(parse_address(address), law, DEFAULT_S if seconds is None and data is None else seconds, data)
    say(
        f"{sent.law}: {sent.throughput_mbps:.2f} Mbit/s for {sent.seconds:.1f} s, RTT {sent.rtt_mean_ms:.1f} ms (95 %: "
        f"{sent.rtt_p95_ms:.1f}), {sent.lost_pkts} of {sent.sent_pkts} packets lost, {sent.cpu_s:.2f} s of CPU"
    )
    write_json(json_destination, asdict(sent))
    if sent.unsent_bytes:
        raise TransferError(
            f"{file}: {sent.unsent_bytes} bytes have not gone in {seconds:g} s; without --seconds all of it goes"
        )


@contextlib.contextmanager
def _output(path: Path | None) -> Iterator[int]:
    if path is None:
        yield -1
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)

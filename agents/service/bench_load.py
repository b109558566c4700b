"""The load on a service that is measured: clients that list and watch, a fleet that follows, uploads with their jobs.

Everything here speaks to the service as its users do. Uploads come from a process of their own, so that what clients
measure is the service and not who sends beside them.
"""

import asyncio
import hashlib
import json
import os
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np

from reinet.agents.model.artifact import MANIFEST_FILE
from reinet.agents.service.blobs import CHUNK_BYTES
from reinet.agents.service.client import Client
from reinet.core.errors import ServiceError
from reinet.proto import trainer_pb2 as pb
from reinet.proto import trainer_pb2_grpc

JOBS = 100
"""So many are listed: half a year of a small team's."""
MOST_WAIT_S = 120.0
NAME = "production"
PART_BYTES = 48 * 2**20
"""An upload is of traces of at most so much: a service takes 64 MB in one."""
CHANNEL = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 16 * 2**20)]
"""Each client has a connection of its own, as clients of several hosts have."""

ANSWER_LOST = "Internal error from Core"
"""What grpc.aio says in place of a service's answer that comes while the request is still being sent."""
ATTEMPTS = 5

STUBS: Any = trainer_pb2_grpc  # generated code carries no types


async def clients(socket: Path, count: int, watched: str, go_on: Callable[[], bool]) -> dict[str, Any]:
    """Lets clients watch a job each and list all of them about once a second, and once at least; returns how long a
    list takes."""
    latencies_ms: list[float] = []
    heard = 0

    async def watch(stub: Any) -> None:
        nonlocal heard
        async for _ in stub.Watch(pb.WatchRequest(job=watched)):
            heard += 1

    async def one() -> None:
        await asyncio.sleep(random.uniform(0, 1))
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=CHANNEL) as channel:
            stub = STUBS.JobsStub(channel)
            watching = asyncio.ensure_future(watch(stub))
            while True:
                start_s = time.monotonic()
                listed = await stub.List(pb.ListRequest(), timeout=MOST_WAIT_S)
                latencies_ms.append(1000 * (time.monotonic() - start_s))
                if len(listed.jobs) < JOBS:
                    raise ServiceError(f"a list had {len(listed.jobs)} of {JOBS} jobs")
                await asyncio.sleep(random.uniform(0.5, 1.5))
                if not go_on():
                    break
            if watching.done():
                raise ServiceError(f"a watcher was left alone: {watching.exception()}")
            watching.cancel()

    start_s = time.monotonic()
    await asyncio.gather(*(one() for _ in range(count)))
    took_s = time.monotonic() - start_s
    return {"lists": len(latencies_ms), "watched_per_s": heard / took_s, **_quantiles("list_ms", latencies_ms)}


async def follow(socket: Path, client: Client, count: int, digests: list[str]) -> dict[str, Any]:
    """Lets daemons follow a name, then points it back; returns how long it takes until each has the other model."""
    heard = asyncio.Semaphore(0)
    times_s: list[float] = []
    moved_s = [0.0]
    before, after = digests[1], digests[0]

    async def one(number: int) -> None:
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=CHANNEL) as channel:
            stub = STUBS.ModelsStub(channel)
            daemon = f"host-{number}"
            async for pointer in stub.Follow(pb.FollowRequest(name=NAME, daemon=daemon)):
                if pointer.model == before:
                    heard.release()
                    continue
                manifest, file = hashlib.sha256(), ""
                async for chunk in stub.Fetch(pb.ModelRequest(model=pointer.model)):
                    file = chunk.file or file
                    if file == MANIFEST_FILE:
                        manifest.update(chunk.data)
                await stub.Report(pb.ReportRequest(daemon=daemon, name=NAME, model=pointer.model))
                if manifest.hexdigest() != after:
                    raise ServiceError("a follower got another model than the name points to")
                times_s.append(time.monotonic() - moved_s[0])
                return

    tasks = [asyncio.ensure_future(one(number)) for number in range(count)]
    for _ in range(count):
        await asyncio.wait_for(heard.acquire(), MOST_WAIT_S)
    moved_s[0] = time.monotonic()
    await asyncio.to_thread(client.rollback, NAME, "bench")
    await asyncio.wait_for(asyncio.gather(*tasks), MOST_WAIT_S)
    reported = sum(daemon["model"] == after for daemon in await asyncio.to_thread(client.fleet))
    if reported != count:
        raise ServiceError(f"{reported} of {count} followers are in the fleet with the model")
    return {"all_have_it_s": max(times_s), **_quantiles("has_it_s", times_s)}


async def uploads(
    socket: Path, count: int, upload_mb: float, listing: int, watched: str, config: dict[str, Any]
) -> dict[str, Any]:
    """Submits traces and a job from many clients at once while others watch and list; returns how long that takes.

    One more, when all are through, is over the quota of bytes, and a job of its own over that of jobs: raises
    ServiceError where either is taken.
    """
    over = False
    spent = asyncio.ensure_future(clients(socket, listing, watched, lambda: not over))
    start_s = time.monotonic()
    with ProcessPoolExecutor(1, get_context("spawn"), os.setsid) as pool:  # as sessions Linux gives each their share
        try:
            await asyncio.get_running_loop().run_in_executor(pool, _send, socket, range(count), upload_mb, config)
            whole_s = time.monotonic() - start_s
        finally:
            over = True
        listed = await spent
        for what, one_more_mb in (("bytes", upload_mb), ("jobs", 0.0)):
            try:
                sent = asyncio.get_running_loop().run_in_executor(pool, _send, socket, [count], one_more_mb, config)
                await sent
            except ServiceError as error:
                if "quota" not in str(error) and "have not ended" not in str(error):
                    raise
            else:
                raise ServiceError(f"the quota of {what} did not hold: one more client was served")
    return {"upload_mb": upload_mb, "all_there_s": whole_s, "mb_per_s": count * upload_mb / whole_s,
            "clients": listing, **listed}  # fmt: skip


def _send(socket: Path, numbers: Sequence[int], upload_mb: float, config: dict[str, Any]) -> None:
    """Sends from so many clients at once, each a job with its traces; raises ServiceError with what was refused."""

    async def one(number: int) -> None:
        left = round(upload_mb * 1e6)
        sent: list[str] = []
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=CHANNEL) as channel:
            stub = STUBS.JobsStub(channel)
            while left > 0:
                size = min(left, PART_BYTES)
                reply = await upload(stub, 1_000_000 + 1_000 * (1000 * number + len(sent)), size)
                left -= size
                sent.append(reply.sha256)
            files = [pb.TraceFile(name=f"{i}.trace", sha256=sha256) for i, sha256 in enumerate(sent)]
            sets = [pb.TraceSet(name="sent", files=files)] if files else []
            await stub.Submit(
                pb.SubmitRequest(request_id=secrets.token_hex(16), config_json=json.dumps(config), traces=sets)
            )

    async def all_of_them() -> None:
        await asyncio.gather(*map(one, numbers))

    try:
        asyncio.run(all_of_them())
    except grpc.aio.AioRpcError as error:  # which does not travel between processes
        raise ServiceError(error.details() or str(error.code())) from None


async def upload(stub: Any, first_ms: int, size_bytes: int) -> Any:
    """Uploads a trace and returns the reply; asks again where grpc.aio has lost it. Raises AioRpcError."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await stub.Upload(_parts(first_ms, size_bytes))
        except grpc.aio.AioRpcError as error:
            if error.details() != ANSWER_LOST:
                raise
    return await stub.Upload(_parts(first_ms, size_bytes))


def _lines(first_ms: int, size_bytes: int) -> Iterator[bytes]:
    """Yields a trace of so many bytes, less than a line's, twenty opportunities a millisecond, a piece at a time."""
    at_ms, left = first_ms, size_bytes
    while left > 0:
        piece = b"".join(b"%d\n" % (at_ms + i) * 20 for i in range(CHUNK_BYTES // 200))
        piece = piece if len(piece) <= left else piece[: piece.rfind(b"\n", 0, left) + 1]
        if not piece:
            return
        yield piece
        at_ms, left = at_ms + CHUNK_BYTES // 200, left - len(piece)


async def _parts(first_ms: int, size_bytes: int) -> AsyncIterator[pb.UploadRequest]:
    digest, size = hashlib.sha256(), 0
    for piece in _lines(first_ms, size_bytes):
        digest.update(piece)
        size += len(piece)
        await asyncio.sleep(0)
    yield pb.UploadRequest(header=pb.UploadHeader(sha256=digest.hexdigest(), size_bytes=size))
    for piece in _lines(first_ms, size_bytes):
        yield pb.UploadRequest(chunk=piece)


def _quantiles(name: str, values: list[float]) -> dict[str, float]:
    return {f"{name}_p50": float(np.percentile(values, 50)), f"{name}_p99": float(np.percentile(values, 99))}

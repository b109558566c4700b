"""Answers the calls of ``Jobs`` in ``proto/trainer.proto``."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from reinet.agents.service import text
from reinet.agents.service.blobs import Blobs
from reinet.agents.service.context import Guarded, guarded
from reinet.agents.service.fleet import Flows
from reinet.agents.service.identity import Caller, Callers
from reinet.agents.service.jobs import ENDED, MOST_FILES, Given, GivenSet, Job, Jobs
from reinet.agents.service.places import Places
from reinet.agents.service.running.progress import Progress, log_since
from reinet.core.errors import ServiceError
from reinet.core.visible import visible
from reinet.proto import trainer_pb2 as pb
from reinet.proto import trainer_pb2_grpc

LOOK_S = 0.3
"""A watcher learns so late at most what a job did; the worker writes as often."""
AT_WORK = ("running", "stopping")
"""In these states a job's files change."""
PROGRESS_S = 1.0
"""Progress alone is sent so often: more would cost a training's host one part in a hundred for each who watches."""
SHARED_S = 0.2
"""What many ask for is looked up so often at most."""
NEVER = (-SHARED_S, pb.ListReply())
MOST_LOG_BYTES = 32 * 1024
"""A watcher gets so much of the log at a time; who reads slowly loses the middle, and the service holds no more."""
MOST_LISTED = 1000
"""The latest so many jobs are listed."""
MOST_UPLOADS = 4
"""So many traces come in at once; others wait, so that memory and disk are bounded."""
MOST_WAITING = 64
"""So many wait: each holds what the service takes unasked (``server.LOOKAHEAD_BYTES``)."""
SHARE = 0.5
"""One identity has so much of the places, and of the room to wait, at most: what it sends slowly, or not at all, is not
to keep the others out."""
MOST_WATCHERS = 1000
MOST_SHOWN = 2**32 - 1
"""A message holds no higher iteration; a job that was accepted before these were bounded is shown with this one."""
STALL_S = 30.0
"""An upload that is silent for so long gives its place to another."""


class JobsServicer(trainer_pb2_grpc.JobsServicer, Guarded):
    """Jobs over gRPC; everything runs in one event loop, what takes long in a thread."""

    def __init__(self, jobs: Jobs, blobs: Blobs, flows: Flows, callers: Callers) -> None:
        self._jobs, self._blobs, self._flows, self.callers = jobs, blobs, flows, callers
        self._uploads = asyncio.Semaphore(MOST_UPLOADS)
        self._uploads_of: dict[str, asyncio.Semaphore] = {}
        """Of each identity that has called; the configuration names them all."""
        self._uploading: Counter[str] = Counter()
        self._watchers = Places(MOST_WATCHERS, "clients are watching already; ask again later")
        self._listed = NEVER
        self._seen: dict[str, tuple[float, Job, pb.Job]] = {}

    @guarded
    async def Missing(self, request: pb.MissingRequest, caller: Caller) -> pb.MissingReply:  # noqa: N802
        """Returns which traces are not there."""
        if len(request.sha256) > MOST_FILES:
            raise ServiceError(f"{len(request.sha256)} traces are too many; {MOST_FILES} at most")
        return pb.MissingReply(sha256=[one for one in request.sha256 if not self._blobs.has(text.sha256("trace", one))])

    @guarded
    async def Upload(self, request: AsyncIterator[pb.UploadRequest], caller: Caller) -> pb.UploadReply:  # noqa: N802
        """Takes one trace."""
        async with self._upload(request, caller) as (header, chunks):
            self._blobs.check(caller, header.sha256, header.size_bytes)
            await self._blobs.receive(caller, header.sha256, header.size_bytes, chunks)
            return pb.UploadReply(sha256=header.sha256)

    @guarded
    async def SendFlow(self, request: AsyncIterator[pb.FlowRequest], caller: Caller) -> pb.FlowReply:  # noqa: N802
        """Takes one flow that a daemon recorded."""
        async with self._upload(request, caller) as (header, chunks):
            await self._flows.receive(
                caller, header.daemon, header.flow, header.sha256, header.size_bytes, chunks
            )  # fmt: skip
            return pb.FlowReply()

    @asynccontextmanager
    async def _upload(
        self, request: AsyncIterator[Any], caller: Caller
    ) -> AsyncIterator[tuple[Any, AsyncIterator[bytes]]]:
        """Yields an upload's header and its chunks, when its turn has come among the caller's, then among all."""
        room = MOST_UPLOADS + MOST_WAITING
        if self._uploading.total() >= room or self._uploading[caller.name] >= SHARE * room:
            raise ServiceError(
                f"{self._uploading[caller.name]} uploads of {caller.name} are under way or waiting already, of "
                f"{self._uploading.total()} in all; send the trace again later"
            )
        own = self._uploads_of.setdefault(caller.name, asyncio.Semaphore(int(SHARE * MOST_UPLOADS)))
        self._uploading[caller.name] += 1
        try:
            async with own, self._uploads:
                parts = without_stalls(request)
                first = await anext(parts, None)
                if first is None or first.WhichOneof("part") != "header":
                    raise ServiceError("an upload begins with a header")

                async def chunks() -> AsyncIterator[bytes]:
                    async for part in parts:
                        if part.WhichOneof("part") != "chunk":
                            raise ServiceError("after an upload's header only chunks follow")
                        yield part.chunk

                yield first.header, chunks()
        finally:
            self._uploading[caller.name] -= 1

    @guarded
    async def Submit(self, request: pb.SubmitRequest, caller: Caller) -> pb.SubmitReply:  # noqa: N802
        """Accepts a job."""
        given = Given(
            request=request.request_id,
            config_json=request.config_json,
            sets=tuple(
                GivenSet(one.name, tuple((file.name, file.sha256) for file in one.files),
                         one.weight if one.weight or math.isnan(one.weight) else 1.0, one.role, one.licence)
                for one in request.traces
            ),
            note=request.note,
            parent=request.parent,
        )  # fmt: skip
        job = await self._jobs.apart(self._jobs.submit, caller, given)
        self._listed = NEVER
        return pb.SubmitReply(job=self._message(job))

    @guarded
    async def List(self, request: pb.ListRequest, caller: Caller) -> pb.ListReply:  # noqa: N802
        """Returns the jobs, oldest first; who ask at the same time share an answer."""
        listed_s, reply = self._listed
        if time.monotonic() - listed_s > SHARED_S:
            reply = pb.ListReply(jobs=[self._message(job) for job in self._jobs.latest(MOST_LISTED)])
            self._listed = (time.monotonic(), reply)
        return reply

    @guarded
    async def Get(self, request: pb.JobRequest, caller: Caller) -> pb.Job:  # noqa: N802
        """Returns one job."""
        return self._message(self._jobs.get(request.job))

    @guarded
    async def Watch(self, request: pb.WatchRequest, caller: Caller) -> AsyncIterator[pb.WatchReply]:  # noqa: N802
        """Sends a job whenever it changes, with its log, until it has ended."""
        with self._watchers.one(caller.name):
            job, offset = self._jobs.get(request.job), request.log_from
            sent: pb.Job | None = None
            sent_s = 0.0
            while True:
                job, message = self._present(job.id)
                lines = ""
                if request.log:
                    lines, offset = log_since(self._jobs.place(job.id), offset, MOST_LOG_BYTES)
                now_s = time.monotonic()
                due = sent is None or message.state != sent.state or now_s - sent_s >= PROGRESS_S
                if lines or (due and message != sent):
                    yield pb.WatchReply(job=message, log=visible(lines, keep="\n"), log_end=offset)
                    sent, sent_s = message, now_s
                if job.state in ENDED and not lines:
                    return
                await asyncio.sleep(LOOK_S)

    @guarded
    async def Stop(self, request: pb.JobRequest, caller: Caller) -> pb.Job:  # noqa: N802
        """Ends a job after its iteration."""
        job = self._own(request.job, caller)
        await self._jobs.apart(self._jobs.stop, job)
        self._listed = NEVER
        return self._message(self._jobs.get(job.id))

    @guarded
    async def Resume(self, request: pb.JobRequest, caller: Caller) -> pb.Job:  # noqa: N802
        """Lets a stopped or failed job go on."""
        job = self._own(request.job, caller)
        await self._jobs.apart(self._jobs.resume, caller, job)
        self._listed = NEVER
        return self._message(self._jobs.get(job.id))

    def _own(self, job_id: str, caller: Caller) -> Job:
        """Returns a job that the caller may change: their own, or any for who holds every role."""
        job = self._jobs.get(job_id)
        if job.owner != caller.name and "promote" not in caller.roles:
            raise ServiceError(f"job {job.id} is {job.owner}'s; only they, or who may promote, can change it")
        return job

    def _present(self, job_id: str) -> tuple[Job, pb.Job]:
        """Returns a job as it was a moment ago at most."""
        looked_s, job, message = self._seen.get(job_id, (-SHARED_S, None, pb.Job()))
        if job is not None and time.monotonic() - looked_s < SHARED_S:
            return job, message
        job = self._jobs.get(job_id)
        return job, self._message(job)

    def _message(self, job: Job) -> pb.Job:
        """Returns a job as it is now; many who watch it share one look at its files."""
        now_s = time.monotonic()
        looked_s, before, message = self._seen.get(job.id, (-SHARED_S, None, pb.Job()))
        if before != job or (job.state in AT_WORK and now_s - looked_s >= SHARED_S):
            message = self._looked(job)
        if len(self._seen) > 2 * MOST_LISTED:
            self._seen.clear()
        self._seen[job.id] = (now_s, job, message)
        return message

    def _looked(self, job: Job) -> pb.Job:
        done = Progress.read(self._jobs.place(job.id))
        return pb.Job(
            job=job.id,
            name=job.name,
            owner=job.owner,
            state=job.state,
            note=job.note,
            created_s=job.created_s,
            ended_s=job.ended_s,
            progress=pb.Progress(
                iteration=_shown(done.iteration),
                iterations=_shown(done.iterations or job.config["run"]["iterations"]),
                env_steps=_shown(done.env_steps, 2**64 - 1),
                env_steps_per_s=done.env_steps_per_s,
                wall_s=done.wall_s,
                left_s=0.0 if job.state == "done" else done.left_s if job.state == "running" else -1.0,
                scalars=done.scalars,
            ),
            model=job.model,
            problem=job.problem,
            attempt=job.attempt,
        )


def _shown(count: int, most: int = MOST_SHOWN) -> int:
    """Returns a count that a message can hold: one job's file is not to take the list from everybody."""
    return min(max(count, 0), most)


async def without_stalls(requests: AsyncIterator[Any], stall_s: float = STALL_S) -> AsyncIterator[Any]:
    """Yields a stream's messages; raises ServiceError where none comes for so long."""
    messages = aiter(requests)
    while True:
        try:
            message = await asyncio.wait_for(anext(messages), stall_s)
        except StopAsyncIteration:
            return
        except asyncio.TimeoutError:
            raise ServiceError(f"nothing came for {stall_s:g} s; send the trace again") from None
        yield message

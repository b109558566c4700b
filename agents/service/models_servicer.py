"""Answers the calls of ``Models`` in ``proto/trainer.proto``."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from reinet.agents.service import gate, text
from reinet.agents.service.config import Gate
from reinet.agents.service.context import Guarded, guarded
from reinet.agents.service.fleet import Fleet as Daemons
from reinet.agents.service.identity import Caller, Callers
from reinet.agents.service.places import Places
from reinet.agents.service.registry import Model, Pointer, Promotion, Registry, check_pointer
from reinet.core.errors import ServiceError
from reinet.core.visible import visible
from reinet.proto import trainer_pb2 as pb
from reinet.proto import trainer_pb2_grpc

CHUNK_BYTES = 256 * 1024
ALIVE_S = 20.0
"""Who follows hears so often that the service lives: well below the minutes after which paths forget a connection."""
MOST_HISTORY = 1000
MOST_FOLLOWERS = 5000


class ModelsServicer(trainer_pb2_grpc.ModelsServicer, Guarded):
    """The registry over gRPC."""

    def __init__(self, folder: Path, registry: Registry, fleet: Daemons, config: Gate, callers: Callers) -> None:
        self._folder, self._registry, self._fleet, self._gate = folder, registry, fleet, config
        self.callers = callers
        self._measuring = asyncio.Lock()
        self._asked: list[str] = []
        """What is to be promoted, as long as the gate measures or another promotion is waited for."""
        self._moved = asyncio.Event()
        self._followers = Places(MOST_FOLLOWERS, "daemons follow already; poll instead")

    @guarded
    async def List(self, request: pb.ListModelsRequest, caller: Caller) -> pb.ListModelsReply:  # noqa: N802
        """Returns the models, oldest first."""
        return pb.ListModelsReply(models=[_model(model, whole=False) for model in self._registry.all()])

    @guarded
    async def Show(self, request: pb.ModelRequest, caller: Caller) -> pb.Model:  # noqa: N802
        """Returns one model with all of its lineage."""
        return _model(self._registry.find(request.model), whole=True)

    @guarded
    async def Fetch(self, request: pb.ModelRequest, caller: Caller) -> AsyncIterator[pb.FileChunk]:  # noqa: N802
        """Sends a model's files."""
        model = self._registry.find(request.model)
        for name, data in (await asyncio.to_thread(self._registry.content, model.sha256)).items():
            for start in range(0, max(len(data), 1), CHUNK_BYTES):
                yield pb.FileChunk(file=name if start == 0 else "", data=data[start : start + CHUNK_BYTES])

    @guarded
    async def Promote(self, request: pb.PromoteRequest, caller: Caller) -> AsyncIterator[pb.PromoteReply]:  # noqa: N802
        """Measures, then points the name to the model."""
        name, why = check_pointer(request.name), text.note("why", request.why)
        model = self._registry.find(request.model)
        self._asked.append(model.sha256)
        try:
            async with aclosing(self._measured(request, model, name, why, caller)) as replies:
                async for reply in replies:
                    yield reply
        finally:
            self._asked.remove(model.sha256)

    async def _measured(
        self, request: pb.PromoteRequest, model: Model, name: str, why: str, caller: Caller
    ) -> AsyncGenerator[pb.PromoteReply, None]:
        if self._measuring.locked():
            yield pb.PromoteReply(told="another promotion is being measured; this one waits")
        async with self._measuring:
            present = self._registry.pointer(name).model
            if present == model.sha256:
                raise ServiceError(f"{name} points to {model.sha256[:12]} already")
            verdict = None
            folders = (self._registry.place(model.sha256), self._registry.place(present) if present else None)
            async with aclosing(gate.ask(self._gate, self._folder, *folders)) as asked:
                async for found in asked:
                    if isinstance(found, gate.Verdict):
                        verdict = found
                    else:
                        yield pb.PromoteReply(told=visible(found))
            assert verdict is not None
            self._registry.measured(model.sha256, verdict.candidate)
            self._registry.measured(present, verdict.present)
            if not verdict.ok and not request.force:
                raise ServiceError(f"{model.sha256[:12]} is not promoted to {name}: {verdict.words}")
            if self._registry.pointer(name).model != present:
                raise ServiceError(f"{name} was pointed elsewhere meanwhile; look at it, then promote again")
            forced = request.force and not verdict.ok
            words = visible(verdict.words)
            done = await self._moved_by(self._registry.promote, model.sha256, name, caller.name, why, forced, words)
        yield pb.PromoteReply(promotion=_promotion(done))

    @guarded
    async def Rollback(self, request: pb.RollbackRequest, caller: Caller) -> pb.Promotion:  # noqa: N802
        """Points the name to what it pointed to before."""
        return _promotion(await self._moved_by(self._registry.rollback, request.name, caller.name, request.why))

    @guarded
    async def History(self, request: pb.HistoryRequest, caller: Caller) -> pb.HistoryReply:  # noqa: N802
        """Returns the latest promotions and roll-backs, oldest first."""
        return pb.HistoryReply(promotions=map(_promotion, self._registry.history(request.name)[-MOST_HISTORY:]))

    @guarded
    async def Gc(self, request: pb.GcRequest, caller: Caller) -> pb.GcReply:  # noqa: N802
        """Removes what nothing points to."""
        in_use = [*(daemon.model for daemon in self._fleet.all()), *self._asked]
        removed, freed = await self._registry.apart(self._registry.gc, request.older_than_s, request.dry_run, in_use)
        return pb.GcReply(removed=removed, freed_bytes=freed)

    @guarded
    async def Resolve(self, request: pb.ResolveRequest, caller: Caller) -> pb.Pointer:  # noqa: N802
        """Returns what a name points to."""
        return _pointer(self._registry.pointer(request.name))

    @guarded
    async def Follow(self, request: pb.FollowRequest, caller: Caller) -> AsyncIterator[pb.Pointer]:  # noqa: N802
        """Sends what a name points to, now, at every change, and as a sign of life."""
        text.name("name", request.name)
        text.name("daemon", request.daemon)
        with self._followers.one(caller.name):
            while True:
                moved = self._moved
                yield _pointer(self._registry.pointer(request.name))
                try:
                    await asyncio.wait_for(moved.wait(), ALIVE_S)
                except asyncio.TimeoutError:
                    continue

    @guarded
    async def Report(self, request: pb.ReportRequest, caller: Caller) -> pb.ReportReply:  # noqa: N802
        """Takes down what a daemon runs."""
        self._fleet.seen(caller.name, request.daemon, request.name, request.model, request.version, request.problem,
                         dict(request.figures))  # fmt: skip
        return pb.ReportReply()

    @guarded
    async def Fleet(self, request: pb.FleetRequest, caller: Caller) -> pb.FleetReply:  # noqa: N802
        """Returns every daemon."""
        now_s = time.time()
        return pb.FleetReply(
            daemons=[
                pb.FleetDaemon(
                    daemon=one.daemon, owner=one.owner, name=one.name, model=one.model, version=one.version,
                    problem=one.problem, seen_s=max(now_s - one.seen_s, 0.0), figures=one.figures,
                )
                for one in self._fleet.all()
            ]
        )  # fmt: skip

    async def _moved_by(self, move: Callable[..., Promotion], *arguments: Any) -> Promotion:
        """Returns the line of history of a move, of which everyone who follows hears, also where the caller has hung
        up before it was written down."""
        moving = asyncio.ensure_future(self._registry.apart(move, *arguments))
        moving.add_done_callback(self._tell)
        return await asyncio.shield(moving)

    def _tell(self, moving: asyncio.Future[Promotion]) -> None:
        """Wakes everyone who follows, where a name moved."""
        if not moving.cancelled() and moving.exception() is None:
            moved, self._moved = self._moved, asyncio.Event()
            moved.set()


def _pointer(found: Pointer) -> pb.Pointer:
    return pb.Pointer(name=found.name, model=found.model, number=found.number, schema_hash=found.schema_hash)


def _promotion(line: Promotion) -> pb.Promotion:
    return pb.Promotion(**vars(line))


def _model(model: Model, whole: bool) -> pb.Model:
    lineage = model.lineage
    return pb.Model(
        sha256=model.sha256, name=model.name, job=model.job, owner=model.owner, parent=model.parent,
        created_s=model.created_s, size_bytes=model.size_bytes, pointers=model.pointers, metrics=lineage["metrics"],
        seed=lineage["seed"], code_version=lineage["code_version"], schema_hash=lineage["schema_hash"],
        config_json=json.dumps(lineage["config"]) if whole else "",
        traces=[pb.TraceUse(**use) for use in lineage["traces"]] if whole else [],
    )  # fmt: skip

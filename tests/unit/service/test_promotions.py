"""Promotions: nothing that is to be promoted is removed meanwhile, and whatever the gate finds can be overruled."""

import asyncio
import contextlib
import inspect
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from helpers.places import ROOT
from helpers.trainer import TINY, Service, put_model
from reinet.agents.service import gate
from reinet.agents.service.config import Gate, Quota, TrainerConfig
from reinet.agents.service.database import Database
from reinet.agents.service.fleet import Fleet
from reinet.agents.service.identity import ALL_ROLES, Caller, Callers
from reinet.agents.service.models_servicer import ModelsServicer
from reinet.agents.service.registry import Registry
from reinet.core.errors import ServiceError
from reinet.proto import trainer_pb2 as pb

ME = Caller("me", ALL_ROLES, Quota())


def test_a_model_is_kept_while_it_is_measured_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_model(tmp_path, ROOT / "checkpoints" / "default", "production")
    model = put_model(tmp_path, ROOT / "checkpoints" / "small", "other")
    database = Database(tmp_path)
    with database.change() as run:  # nothing points to it, or did
        run("DELETE FROM pointers WHERE name = 'other'")
        run("DELETE FROM promotions WHERE name = 'other'")
    registry = Registry(tmp_path, database)
    servicer = ModelsServicer(tmp_path, registry, Fleet(database), Gate(), Callers(TrainerConfig()))
    removed: list[list[str]] = []
    ok = False

    async def gc() -> None:
        reply = await inspect.unwrap(ModelsServicer.Gc)(servicer, pb.GcRequest(), ME)
        removed.append(list(reply.removed))

    async def ask(*_arguments: Any) -> AsyncIterator[gate.Verdict]:
        await gc()
        yield gate.Verdict(ok, "measured")

    async def promote() -> None:
        request = pb.PromoteRequest(model=model, name="production")
        async for _ in inspect.unwrap(ModelsServicer.Promote)(servicer, request, ME):
            pass

    monkeypatch.setattr(gate, "ask", ask)
    with pytest.raises(ServiceError, match="is not promoted"):
        asyncio.run(promote())
    ok = True
    asyncio.run(promote())
    assert removed == [[], []]
    assert registry.pointer("production").model == model
    with database.change() as run:
        run("DELETE FROM pointers WHERE model = ?", (model,))
        run("DELETE FROM promotions WHERE model = ?", (model,))
    asyncio.run(gc())
    assert removed[-1] == [model], "it is kept no longer than it is measured"
    database.close()


@pytest.mark.parametrize(
    ("program", "minutes", "words"),
    [
        (sys.executable, 1e-4, "the gate took more than 0.0001 minutes; see [trainer.gate]"),
        ("/bin/false", 1.0, "the gate could not measure: it ended with 1"),
    ],
)
def test_a_gate_that_comes_to_no_end_or_no_figures_refuses_and_can_be_overruled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, minutes: float, words: str
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    put_model(tmp_path, ROOT / "checkpoints" / "default", "production")
    model = put_model(tmp_path, ROOT / "checkpoints" / "small", "other")
    database = Database(tmp_path)
    registry = Registry(tmp_path, database)
    servicer = ModelsServicer(tmp_path, registry, Fleet(database), Gate(minutes=minutes), Callers(TrainerConfig()))

    async def promote(force: bool) -> pb.Promotion:
        request = pb.PromoteRequest(model=model, name="production", force=force)
        return [reply async for reply in inspect.unwrap(ModelsServicer.Promote)(servicer, request, ME)][-1].promotion

    with pytest.raises(ServiceError, match=rf"is not promoted to production: {re.escape(words)}"):
        asyncio.run(promote(force=False))
    assert registry.pointer("production").model != model
    done = asyncio.run(promote(force=True))
    assert (done.forced, done.gate) == (True, words)
    assert registry.pointer("production").model == model
    assert list((tmp_path / "gate").iterdir()) == []
    database.close()


@pytest.mark.parametrize("ok", [True, False])
def test_what_the_gate_measured_of_both_models_is_shown_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ok: bool
) -> None:
    present = put_model(tmp_path, ROOT / "checkpoints" / "default", "production")
    model = put_model(tmp_path, ROOT / "checkpoints" / "small", "other")
    database = Database(tmp_path)
    registry = Registry(tmp_path, database)
    servicer = ModelsServicer(tmp_path, registry, Fleet(database), Gate(), Callers(TrainerConfig()))

    async def ask(*_arguments: Any) -> AsyncIterator[gate.Verdict]:
        yield gate.Verdict(ok, "measured", candidate={"suite/qdelay_ratio": 0.2}, present={"suite/qdelay_ratio": 0.3})

    async def shown() -> list[float]:
        with contextlib.suppress(ServiceError):
            async for _ in inspect.unwrap(ModelsServicer.Promote)(
                servicer, pb.PromoteRequest(model=model, name="production"), ME
            ):
                pass
        show = inspect.unwrap(ModelsServicer.Show)
        replies = [await show(servicer, pb.ModelRequest(model=one), ME) for one in (model, present)]
        return [reply.metrics["suite/qdelay_ratio"] for reply in replies]

    monkeypatch.setattr(gate, "ask", ask)
    assert asyncio.run(shown()) == [0.2, 0.3]
    database.close()


def test_a_gate_that_is_called_off_while_its_process_begins_leaves_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def called_off(*_arguments: Any, **_options: Any) -> None:
        assert list((tmp_path / "gate").glob("*.request"))
        raise asyncio.CancelledError

    async def asked() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await anext(aiter(gate.ask(Gate(), tmp_path, tmp_path, None)))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", called_off)
    asyncio.run(asked())
    assert not list((tmp_path / "gate").iterdir())


def test_a_gate_whose_process_is_not_even_waited_for_leaves_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a service calls off the wait as well, which on a slow host left the request behind."""
    process = Mock(wait=AsyncMock(side_effect=asyncio.CancelledError))
    process.stdout.readline, process.stderr.read = AsyncMock(return_value=b"measuring"), AsyncMock(return_value=b"")

    async def asked() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            async with contextlib.aclosing(gate.ask(Gate(), tmp_path, tmp_path, None)) as replies:
                assert await anext(replies) == "measuring"

    monkeypatch.setattr(asyncio, "create_subprocess_exec", AsyncMock(return_value=process))
    asyncio.run(asked())
    assert process.kill.called
    assert not list((tmp_path / "gate").iterdir())


def test_a_service_that_ends_ends_its_gate_and_what_watches_without_a_traceback(tmp_path: Path) -> None:
    """What its end calls off was cancelled a second time with the loop, before the gate's process was waited for."""
    service = Service(tmp_path, idle=True, more="[trainer.gate]\nrepeat = 200\n")
    put_model(service.folder, ROOT / "checkpoints" / "default", "production")
    digest = put_model(service.folder, ROOT / "checkpoints" / "small", "canary")
    service.start()
    with service.client() as client:
        streams = [
            client._jobs.Watch(pb.WatchRequest(job=client.submit(TINY)["job"])),
            client._models.Promote(pb.PromoteRequest(model=digest, name="production")),
        ]
        for stream in streams:
            next(stream)
        service.end()
    assert "Traceback" not in service.log(), service.log()
    assert [path.name for path in (service.folder / "gate").iterdir()] == ["runs"]
    service.close()


def test_who_hangs_up_while_a_name_moves_keeps_no_follower_from_hearing_of_it(tmp_path: Path) -> None:
    before = put_model(tmp_path, ROOT / "checkpoints" / "default", "production")
    put_model(tmp_path, ROOT / "checkpoints" / "small", "production")
    database = Database(tmp_path)
    registry = Registry(tmp_path, database)
    servicer = ModelsServicer(tmp_path, registry, Fleet(database), Gate(), Callers(TrainerConfig()))
    rollback: Any = inspect.unwrap(ModelsServicer.Rollback)
    follow: Any = inspect.unwrap(ModelsServicer.Follow)

    async def hang_up() -> None:
        followed = follow(servicer, pb.FollowRequest(name="production", daemon="host-1"), ME)
        assert (await anext(followed)).model != before
        hearing = asyncio.ensure_future(anext(followed))
        with database.change():  # another change is under way, and this one waits for it
            moving = asyncio.ensure_future(rollback(servicer, pb.RollbackRequest(name="production"), ME))
            await asyncio.sleep(0.1)
            moving.cancel()
            await asyncio.wait([moving])
        assert (await asyncio.wait_for(hearing, 10)).model == before

    asyncio.run(hang_up())
    database.close()

"""What the load's clients do where their library fails."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from reinet.agents.service.bench_load import ANSWER_LOST, ATTEMPTS, upload


class Refusing:
    """A service that answers so, and so on."""

    def __init__(self, *answers: str) -> None:
        self.left = list(answers)

    async def Upload(self, request: Any) -> str:  # noqa: N802
        answer = self.left.pop(0)
        if answer == "taken":
            return answer
        raise AioRpcError(grpc.StatusCode.INTERNAL, Metadata(), Metadata(), details=answer)


def test_an_answer_that_the_library_lost_is_asked_for_again() -> None:
    stub = Refusing(ANSWER_LOST, ANSWER_LOST, "taken")
    assert asyncio.run(upload(stub, 1, 1000)) == "taken"
    for answers, said in (((ANSWER_LOST, "over the quota", "taken"), "over the quota"),
                          ((ANSWER_LOST,) * ATTEMPTS + ("taken",), ANSWER_LOST)):  # fmt: skip
        stub = Refusing(*answers)
        with pytest.raises(AioRpcError, match=said):
            asyncio.run(upload(stub, 1, 1000))
        assert stub.left == ["taken"]

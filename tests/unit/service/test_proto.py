"""Versions next to each other understand one another: what the protocol once said it says for good."""

import json
from pathlib import Path
from typing import Any

from helpers.trainer import TINY
from reinet.proto import trainer_pb2 as pb

RECORDED = Path(__file__).with_name("trainer_v1.json")
"""Every field and call of version 1 as first released; nothing in this file ever changes."""
LATER = Path(__file__).with_name("trainer_v1_later.json")
"""What later releases added; nothing is taken out of it."""


def _fields(message: Any, prefix: str = "") -> dict[str, list[Any]]:
    found = {}
    for field in message.fields:
        kind = field.message_type.full_name if field.message_type else field.type
        found[f"{prefix}{message.name}.{field.name}"] = [field.number, kind, field.is_repeated]
    for inner in message.nested_types:
        found |= _fields(inner, f"{prefix}{message.name}.")
    return found


def described() -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        fields |= _fields(message)
    calls = {
        method.full_name: [
            method.input_type.full_name, method.output_type.full_name, method.client_streaming, method.server_streaming,
        ]
        for service in pb.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }  # fmt: skip
    return {"fields": fields, "calls": calls}


def test_no_field_and_no_call_was_renamed_renumbered_or_taken_away() -> None:
    first, later, now = json.loads(RECORDED.read_text()), json.loads(LATER.read_text()), described()
    for kind in ("fields", "calls"):
        recorded = {kind: first[kind] | later[kind]}
        for name, value in recorded[kind].items():
            assert now[kind].get(name) == value, f"{name} was {value}; clients and daemons of the release before say so"
        assert sorted(now[kind]) == sorted(recorded[kind]), "record what was added"


def test_a_field_of_a_later_version_is_passed_over() -> None:
    later = pb.SubmitRequest(request_id="r", config_json=json.dumps(TINY)).SerializeToString() + b"\xfa\x7f\x03new"
    assert pb.SubmitRequest.FromString(later).request_id == "r"

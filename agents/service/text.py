"""What clients may write where people read it: short, printable text, and names that are safe as names of files."""

import re

from reinet.core.errors import ServiceError
from reinet.core.visible import visible

MOST_NAME = 64
"""A name stands in tables, a terminal's line has some 100 columns."""
MOST_NOTE = 500
"""A note is a few sentences."""
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MOST_NAME - 1}}}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[0-9a-f]{12}")


def name(what: str, text: str) -> str:
    """Returns a name that is safe in paths, commands and tables; raises ServiceError naming ``what`` it is of."""
    if not _NAME.fullmatch(text):
        raise ServiceError(
            f"{what} {shown(text)!r} is no name; use 1 to {MOST_NAME} letters, digits, dots, dashes and underscores, a "
            "letter or digit first"
        )
    return text


def note(what: str, text: str) -> str:
    """Returns a note; raises ServiceError where it is long or has what a terminal would obey."""
    if len(text) > MOST_NOTE:
        raise ServiceError(f"{what}: {len(text)} characters are too many; use {MOST_NOTE} at most")
    if visible(text) != text:
        raise ServiceError(f"{what}: has characters that do not print; use plain text on one line")
    return text


def sha256(what: str, text: str) -> str:
    """Returns a digest; raises ServiceError for anything else."""
    if not _SHA256.fullmatch(text):
        raise ServiceError(f"{what} {shown(text)!r} is no sha256; give its 64 hexadecimal digits, in small letters")
    return text


def job_id(text: str) -> str:
    """Returns a job's id; raises ServiceError for anything else."""
    if not _ID.fullmatch(text):
        raise ServiceError(f"job {shown(text)!r}: a job is named by 12 hexadecimal digits; see `reinet jobs list`")
    return text


def shown(text: str) -> str:
    """Returns text of any length and kind, fit for a message."""
    return visible(text if len(text) <= MOST_NAME else text[:MOST_NAME] + "...")

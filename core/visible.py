"""Text from outside (file contents, names, errors) in a form that a terminal shows and does not obey."""

import unicodedata
from collections.abc import Sequence

_OBEYED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that change what a terminal or an editor shows without being seen: control characters, among them
the escape that begins a sequence; format characters, which turn the direction of text; bytes of a file name that are no
UTF-8; separators of lines and paragraphs."""
_SHOWN = 8


def utf8(text: str) -> str:
    r"""Returns text with bytes of a file name that are no UTF-8 written out, ``\udcfc`` for 0xfc: a file takes it."""
    return text.encode("utf-8", "backslashreplace").decode()


def visible(text: object, keep: str = "") -> str:
    r"""Returns ``str(text)`` with every character that a terminal would obey written out, ``\x1b`` for escape.

    ``keep`` names characters that stay as they are, such as the line breaks of a message.
    """
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _OBEYED and char not in keep else char
        for char in str(text)
    )


def some_of(parts: Sequence[object], between: str = ", ") -> str:
    """Returns the first few of them on a line, and how many more there are."""
    more = [f"{len(parts) - _SHOWN} more"] if len(parts) > _SHOWN else []
    return between.join([*map(str, parts[:_SHOWN]), *more])

"""What is to be closed is closed at the end of its ``with`` block, too."""

from abc import ABC, abstractmethod
from typing import TypeVar

_Closed = TypeVar("_Closed", bound="Closing")


class Closing(ABC):
    """Something that ends: by ``close``, or at the end of the ``with`` block that it was made for."""

    @abstractmethod
    def close(self) -> None:
        """Ends it."""

    def __enter__(self: _Closed) -> _Closed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

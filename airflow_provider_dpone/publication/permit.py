"""The permission to send one statement, held in memory only.

A permit exists only between a compare-and-swap that was acknowledged *and* read back by the same
invocation, and the one send that uses it. It can't be copied or pickled, so no second holder can exist.
"""

from __future__ import annotations

from typing import NoReturn, final


@final
class Permit:
    """The right to send the one statement that carries ``token``. Used once or destroyed unused."""

    __slots__ = ("_used", "epoch", "token", "write_id")

    def __init__(self, *, token: str, epoch: int, write_id: str) -> None:
        """Issue a permit. Only an authority adapter may, for its own verified compare-and-swap."""
        self.token = token
        self.epoch = epoch
        self.write_id = write_id
        self._used = False

    @property
    def used(self) -> bool:
        """Tell whether the statement may have left this process, or the permit was destroyed."""
        return self._used

    def use(self, token: str) -> None:
        """Use the permit up. What follows is the send, and nothing that can fail stands between.

        :raises RuntimeError: it was used already, or was issued for another statement.
        """
        if self._used:
            raise RuntimeError("a permit allows one send")
        if token != self.token:
            raise RuntimeError("this permit is for another statement")
        self._used = True

    def __copy__(self) -> NoReturn:
        raise TypeError("a permit can't be copied")

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise TypeError("a permit can't be copied")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a permit can't be pickled")

"""The interface of programs and of the shells around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from raysync.engine.messages import Message

if TYPE_CHECKING:  # a run that only takes time needs no torch
    from torch import Tensor

    from raysync.training.formats.state_file import State

# A *shell* brings messages and values to a program, and takes what it leaves:
#
#   cluster.actors.shell     an actor of Ray: values are payloads of calls, and seconds pass
#   virtual.actors           the virtual clock: values have a time, and a message has a cost
#
# What a shell adds to a message (an emulated device, threads, several workers in one computation)
# has a `handle` of the same form around the program's.


class Handled(NamedTuple):
    """What a message leaves behind, and its answer to the driver."""

    values: Sequence[Any] = ()  # tensors on the program's host, or a file as a memoryview
    answer: Any = None
    # The program's next message overwrites the first value: a shell that keeps it copies it.
    is_borrowed: bool = False

    @property
    def kept(self) -> Sequence[Any]:
        """The values, for a shell that keeps them."""
        if not self.is_borrowed:
            return self.values
        first, *others = self.values
        copy = bytes(first) if isinstance(first, memoryview) else first.clone()
        return (copy, *others)


class Handler(Protocol):
    """A program, or a program with what surrounds it."""

    def handle(
        self, message: Message, inputs: Sequence[Any], into: Tensor | None = None
    ) -> Handled:
        """Do what a message says.

        Args:
            inputs: tensors: flat vectors, perhaps in parts, or activations; or norms, or files.
            into: memory for the first value, which the program may use.

        Raises:
            AssertionError: the message is for another kind of actor, or lacks inputs.
        """


class Program(Handler, Protocol):
    """A program, which can be resumed within a process."""

    def state(self) -> State:
        """Return the state of later messages: tensors, and JSON-native data."""

    def load_state(self, state: State) -> None: ...


def check_size(vectors: Sequence[Tensor], size: int) -> None:
    """Check that vectors, or the parts of one, have so many numbers together."""
    found = sum(map(len, vectors))
    assert found == size, f"{found} numbers for {size}"


def not_mine(kind: str, message: Message) -> AssertionError:
    """Return the error of a message that is for another kind of actor."""
    return AssertionError(f"no call of a {kind}, but of a {message.row.to}: {message}")

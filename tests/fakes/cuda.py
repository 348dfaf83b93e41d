"""A GPU that computes nothing and notices every wait that is missing.

Its tensors are torch's meta tensors: they have shapes and strides, and torch refuses to mix them
with a CPU's. Every operation on one is noted with its stream. An operation that touches memory
which another stream, or the host, may still be using is a `Hazard`, whether or not a real GPU would
have shown it: each stream knows by a vector clock which operations of the others are over before
what it does next (as torch's own CUDA sanitizer does, which needs a GPU).

What it does not imitate: several GPUs, legacy streams that wait for each other by themselves, and
threads, in each of which it would have to be entered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Self

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten


class Hazard(AssertionError):
    """Two operations on the same memory whose order is left to chance."""


class Knowledge(dict[str, int]):
    """Stream -> the number of its operations that are known to be over."""

    def learn(self, other: Knowledge) -> None:
        for stream, number in other.items():
            self[stream] = max(self.get(stream, 0), number)


class FakeStream:
    """Carries out what it is given in order."""

    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.name, self._cuda = name, cuda
        self.knows = Knowledge({name: 0})

    def wait_stream(self, other: FakeStream) -> None:
        self._cuda.note(f"{self.name} waits for {other.name}")
        self.knows.learn(other.knows)

    def synchronize(self) -> None:
        self._cuda.note(f"host waits for {self.name}")
        self._cuda.host.learn(self.knows)


class FakeEvent:
    """A moment of a stream."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda, self.knows, self._number = cuda, Knowledge(), 0

    def record(self, stream: FakeStream | None = None) -> None:
        stream = stream or self._cuda.stream
        self._cuda.note(f"{stream.name}: event")
        self.knows, self._number = Knowledge(stream.knows), stream.knows[stream.name]

    def synchronize(self) -> None:
        self._cuda.note("host waits for an event")
        self._cuda.host.learn(self.knows)

    def elapsed_time(self, end: FakeEvent) -> float:
        """Return the number of operations between two events in place of milliseconds."""
        for stream, number in end.knows.items():
            if self._cuda.host.get(stream, 0) < number:
                raise Hazard("the time between events that may not have been reached")
        return float(end._number - self._number)


class FakeCuda(TorchDispatchMode):
    """Takes the place of `torch.cuda` in a `with` block, with one GPU, `cuda:0`."""

    def __init__(self) -> None:
        super().__init__()
        self.trace: list[str] = []
        """All that happened, in order: operations with their streams, events, waits."""
        self.host = Knowledge()
        self._computing = FakeStream(self, "computing")
        self._current = [self._computing]
        self._made = 0
        self._accesses: dict[int, list[tuple[str, int, bool]]] = {}
        """Storage -> stream, number of the operation and whether it wrote there."""
        self._pinned: set[int] = set()
        self._kept: list[Any] = []  # so that no number of a storage is given twice
        self._patches = pytest.MonkeyPatch()

    @property
    def stream(self) -> FakeStream:
        """The stream that takes what is launched now."""
        return self._current[-1]

    def note(self, line: str) -> None:
        """Add to the trace."""
        self.trace.append(line)

    def __enter__(self) -> Self:
        put, to = self._patches.setattr, Tensor.to
        item, tolist = Tensor.item, Tensor.tolist
        put(torch.cuda, "Stream", self._stream)
        put(torch.cuda, "Event", lambda enable_timing=False: FakeEvent(self))
        put(torch.cuda, "stream", self._within)
        put(torch.cuda, "current_stream", lambda device=None: self.stream)
        put(torch.cuda, "synchronize", lambda device=None: self.stream.synchronize())
        put(torch.cuda, "device", lambda device: nullcontext())
        put(torch.cuda, "manual_seed", lambda value: self.note(f"seed {value}"))
        put(Tensor, "to", lambda tensor, *args, **given: to(tensor, *map(_meta, args), **given))
        put(Tensor, "pin_memory", lambda tensor: self._pin(tensor))
        put(Tensor, "record_stream", lambda tensor, stream: self._record(tensor, stream))
        put(Tensor, "item", lambda tensor: self._known(tensor, item, 0.0))
        put(Tensor, "tolist", lambda tensor: self._known(tensor, tolist, [0.0] * tensor.numel()))
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._patches.undo()

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.pop("pin_memory", False):
            result = func(*args, **kwargs)
            self._pinned.add(self._storage(result))
            return result
        direction = _copy_direction(func, args, kwargs)
        if direction == "copy out":
            source, result = args[0], None
            if func is aten.copy_.default:
                result, source = args[:2]
            else:
                result = torch.zeros(source.shape, dtype=kwargs.get("dtype") or source.dtype)
            result.zero_()  # what a GPU would have written
            self._launch(direction, [source], [result])
            self._block_unless(result, args, kwargs)
            return result
        inputs = _tensors((args, kwargs))
        result = func(*args, **kwargs)
        written = _written(func, args, kwargs)
        if func.is_view:
            return result
        if not any(each.is_meta for each in (*inputs, *_tensors(result))):
            self._touch(inputs, written)
            return result
        name = direction or func.overloadpacket.__name__
        self._launch(name, inputs, [*written, *_tensors(result)])
        if direction == "copy in":
            host = args[1] if func is aten.copy_.default else args[0]
            self._block_unless(host, args, kwargs)
        return result

    def _launch(self, name: str, read: Sequence[Tensor], written: Sequence[Tensor]) -> None:
        """Give the stream an operation; what the host knows is over before it."""
        stream = self.stream
        stream.knows.learn(self.host)
        stream.knows[stream.name] += 1
        self.note(f"{stream.name}: {name}")
        stores = {self._storage(each) for each in written}
        for storage in stores | {self._storage(each) for each in read}:
            self._check(storage, storage in stores, stream.knows, f"{stream.name}: {name}")
            access = stream.name, stream.knows[stream.name], storage in stores
            self._accesses.setdefault(storage, []).append(access)

    def _touch(self, read: Sequence[Tensor], written: Sequence[Tensor]) -> None:
        """Check what the host does with its own memory, which copies may be using."""
        stores = {self._storage(each) for each in written}
        for storage in stores | {self._storage(each) for each in read}:
            self._check(storage, storage in stores, self.host, "host")

    def _check(self, storage: int, writes: bool, knows: Knowledge, what: str) -> None:
        for stream, number, wrote in self._accesses.get(storage, ()):
            if (wrote or writes) and knows.get(stream, 0) < number:
                raise Hazard(f"{what}, which did not wait for {stream}")

    def _block_unless(self, host: Tensor, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Let the host wait for a copy that torch does not do beside it: to or from memory that is
        not pinned, or where nothing else was asked for.
        """
        asks = kwargs.get("non_blocking") or True in args[2:]
        if not (asks and self._storage(host) in self._pinned):
            self.note("host waits for the copy")
            self.host.learn(self.stream.knows)

    def _storage(self, tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        self._kept.append(storage)
        return int(storage._cdata)

    def _stream(self, device: str) -> FakeStream:
        assert device == "cuda:0", "there is one GPU"
        self._made += 1
        return FakeStream(self, f"stream {self._made}")

    @contextmanager
    def _within(self, stream: FakeStream) -> Iterator[None]:
        self._current.append(stream)
        yield
        self._current.pop()

    def _pin(self, tensor: Tensor) -> Tensor:
        pinned = tensor.clone()
        self._pinned.add(self._storage(pinned))
        return pinned

    def _record(self, tensor: Tensor, stream: FakeStream) -> None:
        self.note(f"memory waits for {stream.name}")

    def _known(self, tensor: Tensor, read: Callable[[Tensor], Any], zeros: Any) -> Any:
        """Return the numbers of a tensor of the host; zeros of one of the GPU, once its stream has
        computed it.
        """
        if not tensor.is_meta:
            self._touch([tensor], [])
            return read(tensor)
        self._launch("copy out", [tensor], [])
        self.stream.synchronize()
        return zeros


def _meta(argument: Any) -> Any:
    is_gpu = isinstance(argument, str | torch.device) and str(argument).startswith("cuda")
    return "meta" if is_gpu else argument


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _copy_direction(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """Return whether an operation copies to or from the GPU; "" if it does neither."""
    if func is aten.copy_.default:
        ends = bool(args[1].is_meta), bool(args[0].is_meta)
    elif func is aten._to_copy.default:
        device = kwargs.get("device")
        on_gpu = bool(args[0].is_meta)
        ends = on_gpu, on_gpu if device is None else device.type == "meta"
    else:
        return ""
    return {(False, True): "copy in", (True, False): "copy out"}.get(ends, "")


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the arguments that an operation writes to, by its schema."""
    written = []
    for number, argument in enumerate(func._schema.arguments):
        value = args[number] if number < len(args) else kwargs.get(argument.name)
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += _tensors(value)
    return written

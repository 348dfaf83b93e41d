"""How a module's persistent buffers travel behind its parameters, as float32 numbers.

floats (float32, float16, bfloat16) become float32 and are averaged; doubles keep their bits in two
numbers and are averaged; all other bits are padded, and storages from one worker, since a mean of
integers, complex phases or packed bits is meaningless. P: trainable parameters, Q: buffers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from raysync.errors import ConfigError

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
FLOAT, DOUBLE, BITS = range(3)  # kinds of buffers, in the order of (Q,)
NUMBER_BYTES = 4


class BufferSlots(NamedTuple):
    """The float32 numbers of each kind of buffers, in order."""

    floats: int
    doubles: int = 0  # even
    bits: int = 0

    def within(self, begin: int, end: int) -> BufferSlots:
        """Return the slots of a part of (Q,), whose bounds do not cut a double."""
        bounds = pairwise(accumulate(self, initial=0))
        return BufferSlots(*(max(0, min(end, stop) - max(begin, start)) for start, stop in bounds))

    def mean(self, rows: Sequence[Tensor]) -> Tensor:
        """Average several (Q,); take the bits from the first."""
        if len(rows) == 1:
            return rows[0]
        end, begin_bits = self.floats, self.floats + self.doubles
        means = [_mean_of(torch.stack([row[:end] for row in rows]), torch.int32)]
        if self.doubles:
            stacked = torch.stack([row[end:begin_bits] for row in rows])
            mean = _mean_of(stacked.view(torch.float64), torch.int64)
            means.append(mean.view(torch.float32))
        return torch.cat([*means, rows[0][begin_bits:]])


def _mean_of(stacked: Tensor, integers: torch.dtype) -> Tensor:
    # equal bits stay as they are: a mean may round a constant
    bits = stacked.view(integers)
    return torch.where(bits.amin(0) == bits.amax(0), stacked[0], stacked.mean(0))


@dataclass(frozen=True, slots=True)
class Persistent:
    """A buffer in `state_dict()`."""

    name: str  # in the whole module
    owner: nn.Module
    attribute: str
    built: Tensor

    def read(self) -> Tensor:
        """Return the present tensor, and refuse one of another shape or type than `built`."""
        tensor = getattr(self.owner, self.attribute, None)
        if tensor is not self.built and _description(tensor) != _description(self.built):
            raise _refusal(
                self.name, self.built, f"becomes {_description(tensor)} in a forward pass"
            )
        return tensor  # type: ignore[return-value]

    def write(self, value: Tensor) -> None:
        # the module's present tensor may be a view of something else
        self.built.copy_(value)
        if getattr(self.owner, self.attribute) is not self.built:
            setattr(self.owner, self.attribute, self.built)


def persistent_buffers(module: nn.Module, moved: Collection[str] = ()) -> Iterator[Persistent]:
    """Yield the buffers in `state_dict()` once each, then the parameters named in `moved`."""
    persistent, seen = module.state_dict(keep_vars=True).keys(), set()
    for path, owner in module.named_modules():
        for attribute, buffer in owner.named_buffers(recurse=False, remove_duplicate=False):
            name = f"{path}.{attribute}" if path else attribute
            if name in persistent and id(buffer) not in seen:
                seen.add(id(buffer))
                yield Persistent(name, owner, attribute, buffer)
    for path, owner in module.named_modules() if moved else ():
        for attribute, parameter in owner.named_parameters(recurse=False):
            name = f"{path}.{attribute}" if path else attribute
            if name in moved and id(parameter) not in seen:
                seen.add(id(parameter))
                yield Persistent(name, owner, attribute, parameter)


def refuse_misplaced(buffers: Iterable[Persistent], parameters: Sequence[Tensor]) -> None:
    """Refuse buffers on another device than the parameters, or in their memory, which will move."""
    device = parameters[0].device
    storages = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    for name, buffer in ((each.name, each.built) for each in buffers):
        if buffer.device != device:
            raise _refusal(name, buffer, f"is on {buffer.device}, and the parameters on {device}")
        if (begin := buffer.untyped_storage().data_ptr()) and begin in storages:
            raise _refusal(name, buffer, "is in the memory of a trainable parameter")


def check_buffers(module: nn.Module, buffers: Sequence[Persistent]) -> None:
    """Refuse a layout of buffers that forward passes have changed."""
    for buffer in buffers:
        buffer.read()
    names = {buffer.name for buffer in buffers}
    for buffer in persistent_buffers(module):
        if buffer.name not in names:
            raise _refusal(buffer.name, buffer.built, "comes into being in a forward pass")


class BufferLayout:
    """The place of each buffer in (Q,), behind (P,).

    Raises:
        ConfigError: a buffer, whose name it says, cannot travel.
    """

    def __init__(self, buffers: Mapping[str, Tensor], parameters: int) -> None:
        for name, buffer in buffers.items():
            _check(name, buffer)
        self.parameters = parameters  # P
        self._types = [(buffer.shape, buffer.dtype) for buffer in buffers.values()]
        kinds = [_kind(dtype) for _, dtype in self._types]
        self._order = sorted(range(len(kinds)), key=kinds.__getitem__)
        self._sizes = [_count_numbers(*self._types[index]) for index in self._order]
        totals = [0, 0, 0]
        for index, size in zip(self._order, self._sizes, strict=True):
            totals[kinds[index]] += size
        # Servers share the vector in parts of an even size, none of which may cut a double.
        is_odd = (parameters + totals[FLOAT]) % 2 == 1
        # place of a number that fills the gap before the doubles
        self._filler = kinds.count(FLOAT) if totals[DOUBLE] and is_odd else None
        if self._filler is not None:
            self._sizes.insert(self._filler, 1)
            totals[FLOAT] += 1
        self.slots = BufferSlots(*totals)
        self.size = sum(self.slots)  # Q

    def rows(self, buffers: Sequence[Tensor]) -> list[Tensor]:
        """Return the vectors that (Q,) consists of, in order."""
        rows = [_numbers_of(buffers[index]) for index in self._order]
        if self._filler is not None:
            rows.insert(self._filler, rows[0].new_zeros(1))
        return rows

    def tensors(self, vector: Tensor) -> list[Tensor]:
        """Return the buffers at the end of a vector in the module's order, perhaps as views."""
        parts = list(torch.split(vector[len(vector) - self.size :], self._sizes))
        if self._filler is not None:
            del parts[self._filler]
        by_index = dict(zip(self._order, parts, strict=True))
        return [_tensor_of(by_index[index], *each) for index, each in enumerate(self._types)]


def layout_of(module: nn.Module) -> BufferLayout:
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    buffers = {each.name: each.built for each in persistent_buffers(module)}
    return BufferLayout(buffers, sum(parameter.numel() for parameter in trainable))


def _check(name: str, buffer: Tensor) -> None:
    """Refuse a buffer that cannot be read or written bit by bit."""
    if is_lazy(buffer):
        raise _refusal(name, buffer, "has no size before the first forward pass")
    if buffer.layout is not torch.strided or buffer.is_quantized or buffer.is_nested:
        raise _refusal(name, buffer, "is not dense")
    try:
        with torch.no_grad():
            buffer.copy_(_tensor_of(_numbers_of(buffer).clone(), buffer.shape, buffer.dtype))
    except (RuntimeError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise _refusal(name, buffer, f"cannot be read and written bit by bit ({reason})") from error


def _kind(dtype: torch.dtype) -> int:
    return FLOAT if dtype in FLOATS else DOUBLE if dtype == torch.float64 else BITS


def _count_numbers(shape: torch.Size, dtype: torch.dtype) -> int:
    if _kind(dtype) == FLOAT:
        return shape.numel()
    return -(-shape.numel() * dtype.itemsize // NUMBER_BYTES)


def _numbers_of(buffer: Tensor) -> Tensor:
    if _kind(buffer.dtype) == FLOAT:
        return buffer.reshape(-1).float()
    if not buffer.numel():
        return torch.empty(0, device=buffer.device)
    flat = buffer.resolve_conj().resolve_neg().reshape(-1).contiguous()
    if flat.dtype.itemsize % NUMBER_BYTES == 0:
        return flat.view(torch.float32)
    row = torch.zeros(_count_numbers(flat.shape, flat.dtype), device=flat.device)
    row.view(torch.uint8)[: flat.nbytes].copy_(flat.view(torch.uint8))
    return row


def _tensor_of(row: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    if _kind(dtype) == FLOAT:
        return row.view(shape).to(dtype)
    # the copy begins at an address that suits any type
    raw = row.clone().view(torch.uint8)[: shape.numel() * dtype.itemsize]
    return raw.view(dtype).view(shape)


def _description(buffer: object) -> str:
    if not isinstance(buffer, Tensor):
        return type(buffer).__name__
    return f"{buffer.dtype} {tuple(buffer.shape)}"


def _refusal(name: str, buffer: Tensor, reason: str) -> ConfigError:
    return ConfigError(
        f"model: its buffer {name!r} of {buffer.dtype} {reason}, so it cannot travel between"
        " workers and server.\nAllowed: dense tensors of a fixed size, in memory of their own; with"
        " persistent=False every process keeps its own."
    )

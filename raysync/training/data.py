"""Data sets in memory: uint8 samples, normalised a batch at a time, or rows of tokens."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import numpy.typing as npt
import torch
from numpy.random import default_rng
from torch import Tensor

from raysync.config import Data
from raysync.errors import ConfigError, unknown_name
from raysync.paradigms.class_loading import call, load_reference
from raysync.randomness import hashed_seed
from raysync.training.augment import crop_and_flip
from raysync.training.text import read_text, split, synthetic_text, token_ids
from raysync.training.torchvision_import import torchvision

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class DataSet:
    """A classification data set as NumPy arrays, so that the workers of a node share one copy on
    Ray.

    Shape legend: N = samples, C = channels (or features), T = tokens of a sample.
    """

    name: str
    train_x: Array
    """(N, C, ...) uint8, or float32 that is used unchanged; with `tokens` (N, T) int64."""
    train_y: Array
    """(N,) int64, from 0 to classes - 1; with `tokens` (N, T)."""
    test_x: Array
    test_y: Array
    classes: int
    """The number of classes; with `tokens` the size of the vocabulary."""
    mean: Array
    """(C,) float32, subtracted from uint8 samples."""
    std: Array
    """(C,) float32, by which they are then divided."""
    tokens: bool = False
    """Whether samples are rows of tokens, for a language model: each token has a label of the same
    vocabulary, the one to predict there."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.train_x.shape[1:]

    def samples(self, x: Array) -> Tensor:
        """Return normalised float32 samples, or int64 tokens, of a slice of `train_x` or
        `test_x`.
        """
        if x.dtype != np.uint8:
            return torch.tensor(x)
        shape = (1, -1) + (1,) * (x.ndim - 2)
        return torch.from_numpy(
            (x.astype(np.float32) - self.mean.reshape(shape)) / self.std.reshape(shape)
        )


def data_set(
    name: str,
    train: tuple[Any, Any],
    test: tuple[Any, Any],
    classes: int | None = None,
    *,
    tokens: bool = False,
) -> DataSet:
    """Build a data set of (samples, labels) pairs: arrays or tensors, samples first.

    Args:
        name: the name in records.
        train: samples (N, C, ...), uint8 (normalised per channel) or floating point (used
            unchanged), and integer labels (N,). With `tokens`: integers from 0 (N, T), and labels
            (N, T), the token to predict at each of them.
        test: likewise.
        classes: the number of classes, or the size of the vocabulary; by default the largest label
            (or token) plus 1.
        tokens: whether samples are rows of tokens, for a language model.

    Raises:
        ConfigError: a value is no array, or sizes, shapes, types or labels do not fit.
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"data: name must be a string that is not empty, such as 'mine'; got {name!r:.100}."
        )
    if classes is not None and (not isinstance(classes, int) or classes < 1):
        raise ConfigError(
            f"data {name}: classes must be a whole number from 1, got {classes!r:.100}."
        )
    checked = _tokens if tokens else _samples
    train_x, train_y = _pair(name, "train", train, checked)
    test_x, test_y = _pair(name, "test", test, checked)
    for part, x, y in (("train", train_x, train_y), ("test", test_x, test_y)):
        if y.ndim == 0 or len(x) != len(y) or len(x) == 0:
            labels = len(y) if y.ndim else "no"
            raise ConfigError(
                f"data {name}: {part} has {len(x)} samples and {labels} labels; there must "
                "be as many labels as samples, and at least 1."
            )
        if y.shape != (x.shape if tokens else x.shape[:1]) or not _counts_from_0(y):
            each = "token" if tokens else "sample"
            raise ConfigError(
                f"data {name}: labels of {part} must be whole numbers from 0, one a {each}."
            )
    if train_x.shape[1:] != test_x.shape[1:]:
        raise ConfigError(
            f"data {name}: train samples are {train_x.shape[1:]}, test samples {test_x.shape[1:]}."
        )
    largest = int(
        max(
            part.max()
            for part in ((train_y, test_y, train_x, test_x) if tokens else (train_y, test_y))
        )
    )
    if classes is not None and largest >= classes:
        what, size = (
            ("token", "size of the vocabulary") if tokens else ("label", "number of classes")
        )
        raise ConfigError(f"data {name}: {what} {largest} is not below {classes}, the {size}.")
    mean, std = _channel_moments(train_x)
    return DataSet(
        name,
        train_x,
        train_y.astype(np.int64),
        test_x,
        test_y.astype(np.int64),
        classes or largest + 1,
        mean,
        std,
        tokens,
    )


def _pair(
    name: str, part: str, pair: object, checked: Callable[[str, Array], Array]
) -> tuple[Array, Array]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        what = f"{len(pair)} things" if isinstance(pair, tuple | list) else type(pair).__name__
        raise ConfigError(
            f"data {name}: {part} must be a pair (samples, labels) of arrays or tensors, got "
            f"{what}; a torch Dataset has them in attributes such as data and targets."
        )
    x = _array(f"data {name}: samples of {part}", pair[0])
    return checked(f"data {name}: {part}", x), _array(f"data {name}: labels of {part}", pair[1])


def _array(where: str, value: object) -> Array:
    """Convert a value to a NumPy array of numbers."""
    required = f"{where} must be numbers in an array, a tensor or lists of equal length"
    if not isinstance(value, list | tuple) and not hasattr(value, "__array__"):
        raise ConfigError(f"{required}, got {type(value).__name__}.")
    try:
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, sparse tensors, bfloat16
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(f"{required}, got {type(value).__name__} ({reason:.150}).") from error
    if array.dtype.kind not in "biuf":
        raise ConfigError(f"{required}, got {type(value).__name__} of {array.dtype}.")
    return array


def _samples(where: str, x: Array) -> Array:
    if x.ndim < 2:
        raise ConfigError(
            f"{where}: samples need at least one dimension each, got an array of shape {x.shape}."
        )
    return np.ascontiguousarray(x if x.dtype == np.uint8 else x.astype(np.float32))


def _tokens(where: str, x: Array) -> Array:
    if x.ndim != 2 or not _counts_from_0(x):
        raise ConfigError(
            f"{where}: tokens must be whole numbers from 0 in an array (N, T), got "
            f"{x.dtype} {x.shape}."
        )
    return np.ascontiguousarray(x, np.int64)


def _counts_from_0(values: Array) -> bool:
    return np.issubdtype(values.dtype, np.integer) and values.size > 0 and int(values.min()) >= 0


def _channel_moments(x: Array) -> tuple[Array, Array]:
    """Return mean and standard deviation of each channel, computed exactly from the counts of the
    256 values of a byte.
    """
    if x.dtype != np.uint8:
        return np.zeros(1, np.float32), np.ones(1, np.float32)
    values = np.arange(256)
    moments = []
    for channel in range(x.shape[1]) if x.ndim > 2 else [slice(None)]:
        counts = np.bincount(x[:, channel].reshape(-1), minlength=256)
        mean = counts @ values / counts.sum()
        variance = counts @ (values - mean) ** 2 / counts.sum()
        moments.append((mean, variance**0.5 or 1.0))
    mean, std = np.array(moments, np.float32).T
    return mean, std


def digits() -> DataSet:
    """scikit-learn's 8x8 digits: 1,797 images, the last 360 for testing. Comes with raysync's
    dependencies.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = (bunch.images * 15).astype(np.uint8)[:, None]  # (N, 1, 8, 8); the originals go from 0 to 16
    y = bunch.target
    order = default_rng(0).permutation(len(x))  # the file is ordered by writer
    x, y = x[order], y[order]
    return data_set("digits", (x[:-360], y[:-360]), (x[-360:], y[-360:]), classes=10)


def synthetic(
    *,
    shape: tuple[int, ...] = (1, 28, 28),
    classes: int = 10,
    train: int = 10_000,
    test: int = 2_000,
    noise: float = 64.0,
) -> DataSet:
    """One random image a class with noise on it (standard deviation `noise` of 255): any size, no
    download.
    """
    if min(classes, train, test, *shape) < 1 or noise < 0:
        raise ConfigError(
            "data synthetic: shape, classes, train and test must be at least 1, noise at least 0."
        )
    rng = default_rng(0)
    centres = rng.integers(64, 192, size=(classes, *shape), dtype=np.uint8)

    def draw(count: int) -> tuple[Array, Array]:
        y = rng.integers(classes, size=count)
        x = np.empty((count, *shape), np.uint8)
        for start in range(0, count, 1000):
            part = centres[y[start : start + 1000]]
            x[start : start + 1000] = np.clip(part + rng.normal(0, noise, part.shape), 0, 255)
        return x, y

    return data_set("synthetic", draw(train), draw(test), classes)


def text(*, file: str | None = None, context: int = 64, test_share: float = 0.1) -> DataSet:
    """Characters of a UTF-8 text, each to be predicted from those before it; by default a Markov
    chain of perplexity 3.364.

    A sample is a window of `context` characters; the last `test_share` of the text is the test set.
    The vocabulary is that of the whole text. The first character of a window is predicted from one
    before it, so the best expected perplexity on windows of the Markov chain is a little higher:
    3.42 with 64 characters, 3.47 with 32.

    Raises:
        ConfigError: a parameter is not allowed, or the text is missing, not UTF-8, empty or too
            short.
    """
    if type(context) is not int or context < 1:
        raise ConfigError(
            f"data text: context must be a whole number of characters, at least 1; got {context!r}."
        )
    if not isinstance(test_share, float) or not 0 < test_share < 1:
        raise ConfigError(f"data text: test_share must be above 0 and below 1; got {test_share!r}.")
    if not isinstance(file, str | Path | None):
        raise ConfigError(f"data text: file must be the path of a text; got {file!r}.")
    ids, vocabulary = token_ids(synthetic_text() if file is None else read_text(file))
    return data_set("text", *split(ids, context, test_share), classes=len(vocabulary), tokens=True)


_IDX = tuple(
    f"{part}-{what}-ubyte" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")
)
_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
FILES = {
    "MNIST": ("MNIST/raw", _IDX),
    "FashionMNIST": ("FashionMNIST/raw", _IDX),
    "CIFAR10": ("cifar-10-batches-py", (*_BATCHES, "test_batch", "batches.meta")),
    "CIFAR100": ("cifar-100-python", ("train", "test", "meta")),
}
"""The folder below `data_dir` in which torchvision looks for a data set, and the files in it."""


def _from_torchvision(name: str, cls: str, classes: int) -> Callable[[Path | None], DataSet]:
    def load(data_dir: Path | None) -> DataSet:
        if data_dir is None:
            raise ConfigError(
                f"data {name}: needs data.data_dir, the folder that holds it or that it is"
                " downloaded to."
            )
        root, (below, files) = data_dir.expanduser(), FILES[cls]
        folder = root / below
        missing = [file for file in files if not (folder / file).exists()]
        if missing:
            _download(name, cls, root, missing)
        kind = getattr(torchvision("datasets"), cls)
        try:
            train, test = (kind(root, train=train) for train in (True, False))
        except Exception as error:  # anything that torchvision raises for a file that is cut off
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ConfigError(
                f"data {name}: the files in {folder} are damaged, or not the official ones "
                f"({reason:.200}).\nPut the official ones there, or remove these, to have them "
                "downloaded."
            ) from error
        return data_set(name, _arrays_of(train), _arrays_of(test), classes)

    load.__doc__ = f"torchvision's {cls}."
    return load


def _download(name: str, cls: str, root: Path, missing: Sequence[str]) -> None:
    """Let torchvision download a set.

    Raises:
        ConfigError: the download failed.
    """
    kind, (below, files) = getattr(torchvision("datasets"), cls), FILES[cls]
    folders = [*reversed(root.absolute().parents), root]
    new = next((folder for folder in folders if not folder.exists()), None)
    try:
        kind(root, train=True, download=True)
    except (RuntimeError, URLError, OSError) as error:
        if new is not None:
            # torchvision creates the folder before the download.
            shutil.rmtree(new, ignore_errors=True)
        reason = (str(error) or type(error).__name__).splitlines()[0]
        lacks = f"{root / below} lacks {', '.join(missing)}"
        if len(missing) == len(files):
            lacks = f"not in {root}"
        raise ConfigError(
            f"data {name}: {lacks}, and it cannot be downloaded here ({reason}).\n"
            f"Put the official files into {root / below}/: {', '.join(files)}."
        ) from error


def _arrays_of(part: Any) -> tuple[Array, Array]:
    return _channels_first(np.asarray(part.data)), np.asarray(part.targets)


def _channels_first(images: Array) -> Array:
    return images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)


DATASETS: dict[str, Callable[..., DataSet]] = {
    "digits": digits,
    "synthetic": synthetic,
    "text": text,
    "mnist": _from_torchvision("mnist", "MNIST", 10),
    "fashion-mnist": _from_torchvision("fashion-mnist", "FashionMNIST", 10),
    "cifar10": _from_torchvision("cifar10", "CIFAR10", 10),
    "cifar100": _from_torchvision("cifar100", "CIFAR100", 100),
}


def load(data: Data) -> DataSet:
    """Load the data set that an experiment names.

    The user's own `package.module:function` gets `data.parameters` and returns a `DataSet` (see
    `data_set`).

    Raises:
        ConfigError: the name or a parameter is unknown, or the files are missing and cannot be
            downloaded.
    """
    where = f"data {data.name}"
    if ":" in data.name:
        whole = call(load_reference(data.name, where), where, data.parameters, {})
    elif data.name in DATASETS:
        whole = call(DATASETS[data.name], where, data.parameters, {"data_dir": data.data_dir})
    else:
        raise unknown_name("data set", data.name, DATASETS)
    if not isinstance(whole, DataSet):
        raise ConfigError(
            f"data {data.name}: must return a raysync.DataSet, got {type(whole).__name__}."
        )
    return subset(whole, data)


def subset(whole: DataSet, data: Data) -> DataSet:
    """Return a data set with only the first `train_samples` and `test_samples`."""
    train, test = data.train_samples, data.test_samples
    return replace(
        whole,
        train_x=whole.train_x[:train],
        train_y=whole.train_y[:train],
        test_x=whole.test_x[:test],
        test_y=whole.test_y[:test],
    )


def shards(data: Data, labels: Array, slots: list[str], seed: int) -> dict[str, Array]:
    """Deal the training samples out to the worker slots.

    Args:
        data: `partition` `iid` deals a shuffled set out evenly; `dirichlet` draws, for each class,
            the shares of the slots from Dir(alpha) (Hsu et al. 2019, "Measuring the effects of
            non-identical data distribution"); `shared` gives all samples to every slot.
        labels: (N,); with tokens (N, T).
        slots: the slots in the order of the experiment.
        seed: the seed of the run.

    Returns:
        Slot -> indices, int64; none is empty.

    Raises:
        ConfigError: there are more slots than samples, alpha is so small that in each of 100 draws
            a slot gets no sample, or `dirichlet` meets samples with more than one label.
    """
    rng = default_rng(hashed_seed(seed, "partition"))
    if len(labels) < len(slots):
        raise ConfigError(
            f"data: {len(labels)} training samples cannot be dealt out to {len(slots)} workers."
        )
    if data.partition == "shared":
        return {slot: np.arange(len(labels)) for slot in slots}
    if data.partition == "iid":
        order = rng.permutation(len(labels))
        return {slot: order[index :: len(slots)] for index, slot in enumerate(slots)}
    if labels.ndim > 1:
        raise ConfigError(
            "data.partition: dirichlet deals samples out by their class; these have a label for"
            " each token.\nAllowed: iid, shared."
        )
    for _ in range(100):
        parts: list[list[Array]] = [[] for _ in slots]
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            cuts = np.cumsum(rng.dirichlet([data.alpha] * len(slots)))[:-1] * len(members)
            for part, piece in zip(parts, np.split(members, cuts.astype(int)), strict=True):
                part.append(piece)
        dealt = [np.concatenate(part) for part in parts]
        if all(len(part) for part in dealt):
            return dict(zip(slots, dealt, strict=True))
    raise ConfigError(
        f"data.alpha: {data.alpha} leaves a worker without samples in each of 100 draws; use a"
        " larger one."
    )


class Batches:
    """The batches of one slot: a function of (seed, slot, clock, batch size) alone.

    The slot's shard is shuffled anew for each pass; batch c takes samples c * size to (c + 1) *
    size - 1 of the endless sequence of passes, so each pass has every sample once.
    """

    def __init__(self, shard: Array, seed: int, slot: str, augment: str = "none") -> None:
        """
        Args:
            shard: the indices of the slot's training samples.
            seed: the seed of the run.
            slot: the worker's slot.
            augment: as in `config.Data`.
        """
        self._shard = shard
        self._augment = augment
        self._seed = seed
        self._slot = slot
        self._pass = -1
        self._order = shard

    def seed(self, clock: int) -> int:
        """Return the seed of what the model itself draws when it computes that batch."""
        return hashed_seed(self._seed, "step", self._slot, clock) >> 1

    def draw(self, data: DataSet, clock: int, size: int) -> tuple[Tensor, Tensor]:
        """Return samples (size, C, ...) and labels (size,) of one batch; the same key always gives
        the same augmentation.

        Samples are normalised; tokens and their labels are (size, T).
        """
        indices = self.indices(clock, size)
        x = data.train_x[indices]
        if self._augment == "crop-flip":
            seed = hashed_seed(self._seed, "augment", self._slot, clock) >> 1
            x = crop_and_flip(torch.from_numpy(x), seed).numpy()
        return data.samples(x), torch.from_numpy(data.train_y[indices])

    def indices(self, clock: int, size: int) -> Array:
        """Return the training-set indices of one batch, (size,)."""
        start, pieces, missing = clock * size, [], size
        while missing:
            number, offset = divmod(start, len(self._shard))
            piece = self._passed(number)[offset : offset + missing]
            pieces.append(piece)
            start += len(piece)
            missing -= len(piece)
        return np.concatenate(pieces)

    def _passed(self, number: int) -> Array:
        if number != self._pass:
            rng = default_rng(hashed_seed(self._seed, "batch", self._slot, number))
            self._pass, self._order = number, rng.permutation(self._shard)
        return self._order

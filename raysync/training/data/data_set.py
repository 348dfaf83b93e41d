"""Data sets: in memory (uint8 images, tokens, numbers), or read sample by sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.random import default_rng
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset

from raysync.config import Data
from raysync.errors import ConfigError
from raysync.randomness import hashed_seed
from raysync.training.data.augment import crop_and_flip
from raysync.training.data.batch_reader import SeededSamples, generators_restored
from raysync.training.data.batches import Array
from raysync.users_code import users_code


@dataclass(frozen=True)
class DataSet:
    """Samples with labels as NumPy arrays, which the workers of a node share on Ray.

    Shapes: N samples, C channels (or features), T tokens, K numbers to predict for a sample.
    """

    name: str
    # (N, C, ...) uint8, or float32 that is used unchanged; with `tokens` (N, T) int64
    train_x: Array
    # (N,) int64, from 0 to classes - 1; with `tokens` (N, T); for a regression (N, K) float32
    train_y: Array
    test_x: Array
    test_y: Array
    classes: int  # with `tokens` the size of the vocabulary; for a regression K
    mean: Array  # (C,) float32, subtracted from uint8 samples
    std: Array  # (C,) float32, their divisor
    # samples are rows of tokens for a language model, each labelled with the next token
    tokens: bool = False
    validation_x: Array | None = None  # None: evaluations use the test set
    validation_y: Array | None = None
    sampler: Any = None  # of training samples, as `Task.sampler` returns it

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.train_x.shape[1:]

    @property
    def regression(self) -> bool:
        """Whether labels are numbers to predict, not classes."""
        return self.train_y.dtype.kind == "f"

    @property
    def train_labels(self) -> Array:
        return self.train_y

    @property
    def kind(self) -> str:
        """The built-in task that suits the labels."""
        return _task_kind(self.tokens, self.regression)

    def part(self, part: str, augment: str = "none") -> ArraySamples | None:
        """Return `train`, `validation` (None if there is none) or `test` as a torch data set."""
        x, y = getattr(self, f"{part}_x"), getattr(self, f"{part}_y")
        return None if x is None else ArraySamples(self, x, y, augment)

    def samples(self, x: Array) -> Tensor:
        """Return normalised float32 samples, or int64 tokens, of a slice of samples."""
        if x.dtype != np.uint8:
            return torch.tensor(x)
        shape = (1, -1) + (1,) * (x.ndim - 2)
        mean, std = (torch.from_numpy(each.reshape(shape)) for each in (self.mean, self.std))
        return torch.from_numpy(x).float().sub_(mean).div_(std)


class ArraySamples(Dataset[tuple[Tensor, Tensor]]):
    """One part of a `DataSet` as a torch data set that reads whole batches at once."""

    def __init__(self, data: DataSet, x: Array, y: Array, augment: str = "none") -> None:
        self._data, self._x, self._y, self._augment = data, x, y, augment

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.read_batch(np.array([index]), None)
        return x[0], y[0]

    def read_batch(self, indices: Array, seed: int | None) -> tuple[Tensor, Tensor]:
        """Return samples (n, C, ...) with labels; without a seed they are not augmented."""
        x = self._x[indices]
        if self._augment == "crop-flip" and seed is not None:
            x = crop_and_flip(torch.from_numpy(x), seed).numpy()
        return self._data.samples(x), torch.from_numpy(self._y[indices])


@dataclass(frozen=True)
class LazyDataSet:
    """Samples with labels read one by one from torch's map-style data sets of pairs (x, y)."""

    name: str
    train: Dataset[Any]
    test: Dataset[Any]
    classes: int  # for a regression the numbers to predict for a sample
    input_shape: tuple[int, ...]  # of one sample
    regression: bool
    validation: Dataset[Any] | None = None
    tokens: bool = False
    sampler: Any = None  # of training samples, as `Task.sampler` returns it

    @property
    def kind(self) -> str:
        return _task_kind(self.tokens, self.regression)

    def part(self, part: str, augment: str = "none") -> Dataset[Any] | None:
        assert augment == "none", "samples that are read one by one are not augmented"
        samples: Dataset[Any] | None = getattr(self, part)
        return samples

    @property
    def train_labels(self) -> Array:
        """The attribute `targets`, or the labels of all samples, which are then read."""
        targets = getattr(self.train, "targets", None)
        if targets is not None:
            return np.asarray(targets)
        with generators_restored():
            return np.array([int(self.train[index][1]) for index in range(len(self.train))])  # type: ignore[arg-type]


Labelled = DataSet | LazyDataSet


def _task_kind(tokens: bool, regression: bool) -> str:
    if regression:
        return "regression"
    return "language-model" if tokens else "classification"


def data_set(
    name: str,
    train: tuple[Any, Any] | Dataset[Any],
    test: tuple[Any, Any] | Dataset[Any],
    classes: int | None = None,
    *,
    tokens: bool = False,
    regression: bool = False,
    validation: tuple[Any, Any] | Dataset[Any] | None = None,
    sampler: Any = None,
) -> Labelled:
    """Build a data set from pairs of arrays, or from torch's map-style data sets.

    Args:
        name: the name in records.
        train: samples (N, C, ...), uint8 (normalised per channel) or floating point (used
            unchanged), and integer labels (N,). With `tokens`: integers from 0 (N, T), and labels
            (N, T), the token to predict at each of them. With `regression`: numbers (N,) or (N, K).
            Or a `torch.utils.data.Dataset` of pairs (x, y), read sample by sample.
        test: likewise.
        classes: the number of classes, or the size of the vocabulary; by default the largest label
            (or token) plus 1, which a `Dataset` must have in its attribute `targets`.
        tokens: samples are rows of tokens, for a language model.
        regression: labels are numbers to predict.
        validation: like `test`: evaluations then use it, and the test set only once, at the end.
        sampler: a sampler of torch, or indices: which training samples are drawn; None: all.

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
    parts = {"train": train, "validation": validation, "test": test}
    if validation is None:
        del parts["validation"]
    lazy = [part for part, value in parts.items() if isinstance(value, Dataset)]
    if lazy:
        if len(lazy) < len(parts):
            raise ConfigError(f"data {name}: {lazy[0]} is a torch Dataset, so all parts must be.")
        return replace(_lazy(name, parts, classes, tokens, regression), sampler=sampler)
    return replace(_in_memory(name, parts, classes, tokens, regression), sampler=sampler)


def _in_memory(
    name: str, parts: dict[str, Any], classes: int | None, tokens: bool, regression: bool
) -> DataSet:
    convert = _as_tokens if tokens else _as_samples
    arrays = {part: _as_arrays(name, part, pair, convert) for part, pair in parts.items()}
    train_x, _ = arrays["train"]
    for part, (x, y) in arrays.items():
        if y.ndim == 0 or len(x) != len(y) or len(x) == 0:
            labels = len(y) if y.ndim else "no"
            raise ConfigError(
                f"data {name}: {part} has {len(x)} samples and {labels} labels; there must "
                "be as many labels as samples, and at least 1."
            )
        if regression:
            continue
        if y.shape != (x.shape if tokens else x.shape[:1]) or not _counts_from_0(y):
            unit = "token" if tokens else "sample"
            raise ConfigError(
                f"data {name}: labels of {part} must be whole numbers from 0, one a {unit}; for"
                " numbers to predict say regression=True."
            )
    for part, (x, _) in arrays.items():
        if train_x.shape[1:] != x.shape[1:]:
            raise ConfigError(
                f"data {name}: train samples are {train_x.shape[1:]}, {part} samples {x.shape[1:]}."
            )
    if regression:
        arrays = {part: (x, _as_targets(name, part, y)) for part, (x, y) in arrays.items()}
        count = _target_count(name, arrays, classes)
    else:
        count = _class_count(name, arrays, classes, tokens)
        arrays = {part: (x, y.astype(np.int64)) for part, (x, y) in arrays.items()}
    mean, std = _channel_moments(train_x)
    vectors = {
        f"{part}_{axis}": z for part in arrays for axis, z in zip("xy", arrays[part], strict=True)
    }
    return DataSet(name=name, classes=count, mean=mean, std=std, tokens=tokens, **vectors)


def _as_arrays(
    name: str, part: str, pair: object, convert: Callable[[str, Array], Array]
) -> tuple[Array, Array]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        what = f"{len(pair)} things" if isinstance(pair, tuple | list) else type(pair).__name__
        raise ConfigError(
            f"data {name}: {part} must be a pair (samples, labels) of arrays or tensors, or a torch"
            f" Dataset of such pairs; got {what}."
        )
    x = _as_array(f"data {name}: samples of {part}", pair[0])
    return convert(f"data {name}: {part}", x), _as_array(f"data {name}: labels of {part}", pair[1])


def _as_array(where: str, value: object) -> Array:
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


def _as_samples(where: str, x: Array) -> Array:
    if x.ndim < 2:
        raise ConfigError(
            f"{where}: samples need at least one dimension each, got an array of shape {x.shape}."
        )
    return np.ascontiguousarray(x if x.dtype == np.uint8 else x.astype(np.float32))


def _as_tokens(where: str, x: Array) -> Array:
    if x.ndim != 2 or not _counts_from_0(x):
        raise ConfigError(
            f"{where}: tokens must be whole numbers from 0 in an array (N, T), got "
            f"{x.dtype} {x.shape}."
        )
    return np.ascontiguousarray(x, np.int64)


def _counts_from_0(values: Array) -> bool:
    return np.issubdtype(values.dtype, np.integer) and values.size > 0 and int(values.min()) >= 0


def _as_targets(name: str, part: str, y: Array) -> Array:
    """Return the labels of a regression as (N, K) float32."""
    if y.ndim > 2 or not np.isfinite(y).all():
        raise ConfigError(
            f"data {name}: labels of {part} must be finite numbers (N,) or (N, K), got {y.shape}."
        )
    return np.ascontiguousarray(y.reshape(len(y), -1), np.float32)


def _target_count(name: str, arrays: dict[str, tuple[Array, Array]], classes: int | None) -> int:
    widths = {part: int(y.shape[1]) for part, (_, y) in arrays.items()}
    if len(set(widths.values())) > 1 or classes not in (None, widths["train"]):
        raise ConfigError(
            f"data {name}: a regression has equally many numbers to predict in each part, and"
            f" `classes`, if it is given, says how many; got {widths} and classes: {classes}."
        )
    return widths["train"]


def _class_count(
    name: str, arrays: dict[str, tuple[Array, Array]], classes: int | None, tokens: bool
) -> int:
    counted = [part for x, y in arrays.values() for part in ((x, y) if tokens else (y,))]
    largest = int(max(part.max() for part in counted))
    if classes is not None and largest >= classes:
        what, size = (
            ("token", "size of the vocabulary") if tokens else ("label", "number of classes")
        )
        raise ConfigError(f"data {name}: {what} {largest} is not below {classes}, the {size}.")
    return classes or largest + 1


def _channel_moments(x: Array) -> tuple[Array, Array]:
    """Return mean and standard deviation of each channel, exactly, from the counts of its bytes."""
    if x.dtype != np.uint8:
        return np.zeros(1, np.float32), np.ones(1, np.float32)
    values = np.arange(256)
    moments = []
    for channel in range(x.shape[1]) if x.ndim > 2 else [slice(None)]:
        counts = np.bincount(x[:, channel].reshape(-1), minlength=len(values))
        mean = counts @ values / counts.sum()
        variance = counts @ (values - mean) ** 2 / counts.sum()
        moments.append((mean, variance**0.5 or 1.0))
    mean, std = np.array(moments, np.float32).T
    return mean, std


def _lazy(
    name: str, parts: dict[str, Any], classes: int | None, tokens: bool, regression: bool
) -> LazyDataSet:
    for part, samples in parts.items():
        check_samples(f"data {name}: {part}", samples)
    train = parts["train"]
    with generators_restored(), users_code(f"data {name}: sample 0 of train"):
        first = SeededSamples(train)[0, 0]
    if not isinstance(first, tuple | list) or len(first) != 2:
        raise ConfigError(
            f"data {name}: samples of train must be pairs (x, y), got {type(first).__name__}; for"
            " any other structure write a task (raysync.Task)."
        )
    x, y = first
    if not isinstance(x, Tensor | np.ndarray):
        raise ConfigError(
            f"data {name}: the x of a sample must be a tensor or an array, got {type(x).__name__}."
        )
    if classes is None and not regression:
        targets = getattr(train, "targets", None)
        if targets is None:
            raise ConfigError(
                f"data {name}: set classes: the training set has no attribute `targets` to count"
                " them."
            )
        classes = int(np.max(np.asarray(targets))) + 1
    return LazyDataSet(
        name,
        **parts,
        classes=classes or max(1, np.asarray(y).size),
        input_shape=tuple(x.shape),
        regression=regression,
        tokens=tokens,
    )


def subset(whole: Labelled, data: Data) -> Labelled:
    """Limit a data set to its first samples, and split off a validation set, as `data` says.

    Raises:
        ConfigError: the set has a validation set already, too few samples, or is read one by one;
            or a sampler chooses among all of its training samples.
    """
    train, test = data.train_samples, data.test_samples
    if whole.sampler is not None and (train or data.validation_samples):
        setting = "train_samples" if train else "validation_samples"
        raise ConfigError(
            f"data.{setting}: the sampler of {whole.name} chooses among all training samples."
        )
    if isinstance(whole, LazyDataSet):
        if data.validation_samples is not None:
            raise ConfigError(
                f"data.validation_samples: the samples of {whole.name} are read one by one, perhaps"
                " with augmentation; give it a validation set of its own: data_set(validation=...)."
            )
        return replace(whole, train=first_of(whole.train, train), test=first_of(whole.test, test))
    part = replace(
        whole,
        train_x=whole.train_x[:train],
        train_y=whole.train_y[:train],
        test_x=whole.test_x[:test],
        test_y=whole.test_y[:test],
    )
    if data.validation_samples is None:
        return part
    return _split_off_validation(part, data.validation_samples)


def _split_off_validation(whole: DataSet, count: int) -> DataSet:
    """Move some training samples, always the same ones, to the validation set."""
    if whole.validation_x is not None:
        raise ConfigError(f"data.validation_samples: {whole.name} has a validation set already.")
    if count >= len(whole.train_x):
        raise ConfigError(
            f"data.validation_samples: {count:,} of {len(whole.train_x):,} training samples of"
            f" {whole.name} leave none to train on."
        )
    order = default_rng(hashed_seed(0, "validation")).permutation(len(whole.train_x))
    validation, train = np.sort(order[:count]), np.sort(order[count:])
    return replace(
        whole,
        train_x=whole.train_x[train],
        train_y=whole.train_y[train],
        validation_x=whole.train_x[validation],
        validation_y=whole.train_y[validation],
    )


def first_of(samples: Dataset[Any], count: int | None) -> Dataset[Any]:
    """Return the first samples of a data set; None: all."""
    size = len(samples)  # type: ignore[arg-type]
    if count is None or count >= size:
        return samples
    part = Subset(samples, range(count))
    if (targets := getattr(samples, "targets", None)) is not None:
        part.targets = targets[:count]  # type: ignore[attr-defined]
    return part


def check_samples(where: str, samples: Dataset[Any]) -> int:
    """Count the samples of a map-style data set, and refuse any other or an empty one."""
    if isinstance(samples, IterableDataset) or not hasattr(samples, "__getitem__"):
        raise ConfigError(
            f"{where}: {type(samples).__name__} is not a map-style data set: a batch is a function"
            " of (seed, worker, clock), so samples are read by index.\nAllowed: a"
            " torch.utils.data.Dataset with __getitem__ and __len__."
        )
    if not hasattr(samples, "__len__"):
        raise ConfigError(
            f"{where}: {type(samples).__name__} has no __len__; raysync deals the samples out by"
            " their number."
        )
    with users_code(f"{where}: __len__"):
        count = len(samples)
    if count < 1:
        raise ConfigError(f"{where}: {type(samples).__name__} is empty.")
    return count

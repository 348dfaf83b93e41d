"""The data sets that an experiment names: raysync's own, torchvision's, and the user's."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
from numpy.random import default_rng

from raysync.config import Data
from raysync.errors import ConfigError, unknown_name
from raysync.paradigms.class_loading import call_checked, load_reference
from raysync.training.data.batches import Array
from raysync.training.data.data_set import DataSet, Labelled, LazyDataSet, data_set, subset
from raysync.training.data.text import read_text, split, synthetic_text, token_ids
from raysync.users_code import users_code

DRAWN_AT_ONCE = 1000  # random images: the float64 noise of all would take 8 times their memory


def digits() -> Labelled:
    """scikit-learn's 8x8 digits: 1,797 images, the last 360 for testing. Comes with raysync."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = (bunch.images * 15).astype(np.uint8)[:, None]  # (N, 1, 8, 8); the originals go from 0 to 16
    y = bunch.target
    order = default_rng(0).permutation(len(x))  # the file is ordered by writer
    x, y = x[order], y[order]
    return data_set("digits", (x[:-360], y[:-360]), (x[-360:], y[-360:]), classes=10)


def diabetes() -> Labelled:
    """scikit-learn's diabetes: 442 patients' progress after ten measures, 88 for testing.

    A regression on the next year; all numbers are standardised by the training set. Comes with
    raysync.
    """
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes(scaled=False)
    order = default_rng(0).permutation(len(bunch.target))
    numbers = np.column_stack([bunch.data, bunch.target])[order]
    train = numbers[:-88]
    numbers = (numbers - train.mean(axis=0)) / train.std(axis=0)
    x, y = numbers[:, :-1], numbers[:, -1]
    return data_set("diabetes", (x[:-88], y[:-88]), (x[-88:], y[-88:]), regression=True)


def synthetic(
    *,
    shape: tuple[int, ...] = (1, 28, 28),
    classes: int = 10,
    train: int = 10_000,
    test: int = 2_000,
    noise: float = 64.0,
) -> Labelled:
    """One random image a class with noise (deviation `noise` of 255): any size, no download."""
    if min(classes, train, test, *shape) < 1 or noise < 0:
        raise ConfigError(
            "data synthetic: shape, classes, train and test must be at least 1, noise at least 0."
        )
    rng = default_rng(0)
    centres = rng.integers(64, 192, size=(classes, *shape), dtype=np.uint8)

    def draw(count: int) -> tuple[Array, Array]:
        y = rng.integers(classes, size=count)
        x = np.empty((count, *shape), np.uint8)
        for start in range(0, count, DRAWN_AT_ONCE):
            rows = slice(start, start + DRAWN_AT_ONCE)
            images = centres[y[rows]]
            x[rows] = np.clip(images + rng.normal(0, noise, images.shape), 0, 255)
        return x, y

    return data_set("synthetic", draw(train), draw(test), classes)


def text(*, file: str | None = None, context: int = 64, test_share: float = 0.1) -> Labelled:
    """Characters of a UTF-8 text, each predicted from those before it; by default a Markov chain.

    A sample is a window of `context` characters; the last `test_share` of the text is the test set.
    The chain's perplexity is 3.364; a window's first character is predicted from one, so the best
    on windows is 3.42 with 64 characters, 3.47 with 32.
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


_IDX_FILES = tuple(
    f"{part}-{what}-ubyte" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")
)
_CIFAR10_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
# torchvision's folder below `data_dir`, and the files in it
FILES = {
    "MNIST": ("MNIST/raw", _IDX_FILES),
    "FashionMNIST": ("FashionMNIST/raw", _IDX_FILES),
    "CIFAR10": ("cifar-10-batches-py", (*_CIFAR10_BATCHES, "test_batch", "batches.meta")),
    "CIFAR100": ("cifar-100-python", ("train", "test", "meta")),
}


def _from_torchvision(name: str, cls: str, classes: int) -> Callable[[Path | None], Labelled]:
    def read(data_dir: Path | None) -> Labelled:
        if data_dir is None:
            raise ConfigError(
                f"data {name}: needs data.data_dir, the folder that holds it or that it is"
                " downloaded to."
            )
        root, (subfolder, files) = data_dir.expanduser(), FILES[cls]
        folder = root / subfolder
        missing = [file for file in files if not (folder / file).exists()]
        if missing:
            _download(name, cls, root, missing)
        kind = getattr(import_module("torchvision.datasets"), cls)
        try:
            train, test = (kind(root, train=train) for train in (True, False))
        except Exception as error:  # anything that torchvision raises for a file that is cut off
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ConfigError(
                f"data {name}: the files in {folder} are damaged, or not the official ones"
                f" ({reason:.200}).\n"
                "Put the official files there, or remove these files to download them again."
            ) from error
        return data_set(name, _arrays_of(train), _arrays_of(test), classes)

    read.__doc__ = f"torchvision's {cls}."
    return read


def _download(name: str, cls: str, root: Path, missing: Sequence[str]) -> None:
    kind, (subfolder, files) = getattr(import_module("torchvision.datasets"), cls), FILES[cls]
    folders = [*reversed(root.absolute().parents), root]
    new = next((folder for folder in folders if not folder.exists()), None)
    try:
        kind(root, train=True, download=True)
    except (RuntimeError, URLError, OSError) as error:
        if new is not None:
            # torchvision creates the folder before the download
            shutil.rmtree(new, ignore_errors=True)
        reason = (str(error) or type(error).__name__).splitlines()[0]
        lacks = f"{root / subfolder} lacks {', '.join(missing)}"
        if len(missing) == len(files):
            lacks = f"not in {root}"
        raise ConfigError(
            f"data {name}: {lacks}, and it cannot be downloaded here ({reason}).\n"
            f"Put the official files into {root / subfolder}/: {', '.join(files)}."
        ) from error


def _arrays_of(part: Any) -> tuple[Array, Array]:
    return _channels_first(np.asarray(part.data)), np.asarray(part.targets)


def _channels_first(images: Array) -> Array:
    return images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)


# data sets -> their built-in tasks; all others are for classification
KINDS = {"text": "language-model", "diabetes": "regression"}

DATASETS: dict[str, Callable[..., Labelled]] = {
    "digits": digits,
    "diabetes": diabetes,
    "synthetic": synthetic,
    "text": text,
    "mnist": _from_torchvision("mnist", "MNIST", 10),
    "fashion-mnist": _from_torchvision("fashion-mnist", "FashionMNIST", 10),
    "cifar10": _from_torchvision("cifar10", "CIFAR10", 10),
    "cifar100": _from_torchvision("cifar100", "CIFAR100", 100),
}


def load(data: Data) -> Labelled:
    """Load the data set that an experiment names.

    The user's `package.module:function` gets `data.parameters` and returns a `data_set`.
    """
    where = f"data {data.name}"
    if ":" in data.name:
        function = load_reference(data.name, where)
        with users_code(where):
            whole = call_checked(function, where, data.parameters, {})
    elif data.name in DATASETS:
        offered = {"data_dir": data.data_dir}
        whole = call_checked(DATASETS[data.name], where, data.parameters, offered)
    else:
        raise unknown_name("data set", data.name, DATASETS)
    if not isinstance(whole, DataSet | LazyDataSet):
        raise ConfigError(
            f"data {data.name}: must return a raysync.DataSet, got {type(whole).__name__}."
        )
    return subset(whole, data)

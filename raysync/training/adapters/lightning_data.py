"""The data sets of a LightningModule or a LightningDataModule, by their loaders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch.utils.data import BatchSampler, DataLoader, Dataset, Subset

from raysync.errors import ConfigError
from raysync.training.data.data_set import check_samples
from raysync.training.data.samplers import read_selection
from raysync.training.data.selected_samples import SelectedSamples, Selection
from raysync.users_code import users_code

# part of the data -> the hook that returns its loader
LOADERS = {"train": "train_dataloader", "validation": "val_dataloader", "test": "test_dataloader"}
# hooks that change a batch
BATCH_HOOKS = ("on_after_batch_transfer", "on_before_batch_transfer", "transfer_batch_to_device")
# prefixes of lightning's own modules, under both names of the library
PACKAGES = ("lightning.", "pytorch_lightning.")


class Tagged(NamedTuple):
    """A sample or batch, and its part of the data, by which a module chooses steps and
    `collate_fn`.
    """

    part: str
    content: Any


class TaggedSamples(Dataset[Tagged]):
    """The samples of a loader; an evaluation's are only those that its sampler chooses."""

    def __init__(self, part: str, loader: DataLoader[Any], selection: Selection | None) -> None:
        self.part, self.samples, self.collate = part, loader.dataset, loader.collate_fn
        self.selection = selection
        if part != "train" and selection is not None:
            self.samples = SelectedSamples(self.samples, selection)

    def __len__(self) -> int:
        return len(self.samples)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Tagged:
        return Tagged(self.part, self.samples[index])


def parts_of(source: Any, where: str) -> dict[str, TaggedSamples]:
    """Set up a module or data module whose data are prepared; return the parts with a loader.

    Raises:
        ConfigError: a loader is not one DataLoader of samples, its sampler cannot be followed, or a
            hook changes batches.
    """
    refuse_hooks(BATCH_HOOKS, source, where)
    parts = {}
    for part, hook in LOADERS.items():
        if part != "validation":
            stage = "fit" if part == "train" else "test"
            with users_code(f"{where}: setup"):
                source.setup(stage)
        if has_hook(source, hook) and (loader := _loader(source, hook, where)) is not None:
            selection = _selection(loader, f"{where}: {hook}: sampler")
            if part != "train" and selection is not None and selection.weights is not None:
                raise ConfigError(
                    f"{where}: {hook}: sampler: {type(loader.sampler).__name__} draws samples with"
                    " replacement, but an evaluation measures each of them."
                )
            parts[part] = TaggedSamples(part, loader, selection)
    return parts


def _selection(loader: DataLoader[Any], where: str) -> Selection | None:
    sampler: Any = loader.sampler
    if loader.batch_size is None:  # the loader was given a batch sampler
        batches: Any = loader.batch_sampler
        if type(batches) is not BatchSampler:
            raise ConfigError(
                f"{where}: {type(batches).__name__} makes batches of its own, and raysync does:"
                " each is a function of (seed, worker, number). Give the loader a sampler= of"
                " indices."
            )
        sampler = batches.sampler
    return read_selection(lambda: sampler, loader.dataset, where)


def _loader(source: Any, hook: str, where: str) -> DataLoader[Any] | None:
    with users_code(f"{where}: {hook}"):
        loader = getattr(source, hook)()
    if isinstance(loader, list | tuple) and len(loader) == 1:
        loader = loader[0]
    if loader is None or loader == []:
        return None
    if not isinstance(loader, DataLoader):
        raise ConfigError(
            f"{where}: {hook}: must return one DataLoader of torch, got {type(loader).__name__}."
        )
    if loader.batch_sampler is None:
        raise ConfigError(f"{where}: {hook}: batch_size=None: its data set must have samples.")
    check_samples(f"{where}: {hook}", loader.dataset)
    return loader


def targets_of(samples: Any) -> Any:
    """Return the attribute `targets` of a data set, also through `Subset`; None if it has none."""
    if isinstance(samples, TaggedSamples):
        return targets_of(samples.samples)
    if isinstance(samples, Subset):
        whole = targets_of(samples.dataset)
        return None if whole is None else [whole[index] for index in samples.indices]
    return getattr(samples, "targets", None)


def has_hook(thing: object, hook: str) -> bool:
    """Whether a module or a data module defines a hook, and not only lightning for it."""
    method = getattr(type(thing), hook, None)
    return callable(method) and not method.__module__.startswith(PACKAGES)


def refuse_hooks(hooks: Sequence[str], thing: object, where: str) -> None:
    """Refuse a module or a data module that defines one of these hooks."""
    if hook := next((hook for hook in hooks if has_hook(thing, hook)), None):
        raise ConfigError(
            f"{where}: the hook {hook} of {type(thing).__name__} cannot be carried out: workers"
            " compute gradients of batches as they are collated, and the server applies them."
        )

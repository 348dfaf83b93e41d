"""Samplers: which samples are drawn, and how often, against plain torch."""

import pickle
from collections import Counter
from functools import lru_cache
from itertools import repeat

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from raysync import config, paradigms
from raysync.core.events import Pushed
from raysync.errors import ConfigError
from raysync.programs.building import reader_of, spec_of
from raysync.training.data.batch_reader import BatchReader
from raysync.training.data.data_set import data_set
from raysync.training.data.samplers import read_selection
from raysync.training.data.selected_samples import SelectedSamples
from raysync.training.preparation import prepare
from tests.builders.messages import naming
from tests.builders.tasks import Cut, Pairs
from tests.builders.virtual import QUICK, entries, learn, weights_of

FOLD = (19, 3, 4, 7, 11, 12, 22, 1, 0, 16, 8)
FEW = [float(index in (2, 9, 20)) for index in range(24)]
UNEQUAL = QUICK | {
    "workers": [{"count": 2, "step_s": 0.1}, {"name": "slow", "step_s": 0.17, "batch_size": 2}],
    "batch_size": 3,
    "workload": {"epochs": 3},
}


class Listed(Sampler):
    """Indices of a list, perhaps in another order each time."""

    def __init__(self, indices, shuffled=True):
        self.indices, self.shuffled = indices, shuffled

    def __iter__(self):
        order = torch.randperm(len(self.indices)) if self.shuffled else range(len(self.indices))
        return iter([self.indices[place] for place in order])

    def __len__(self):
        return len(self.indices)


class Sampled(Cut):
    """24 samples, of which a function makes a sampler."""

    def __init__(self, make):
        self.make = make

    def sampler(self, samples):
        return self.make(samples)


class InSubset(Cut):
    """What plain torch does without a sampler."""

    def __init__(self, indices):
        self.indices = indices

    def train_set(self):
        return Subset(super().train_set(), sorted(self.indices))


def by_weights(weights):
    return WeightedRandomSampler(weights, 24)


def planned(task, **more):
    return prepare(config.validate(UNEQUAL | more), task=task)


def learned_by(training, paradigm="bsp"):
    return weights_of(learn(training, paradigm)[1])


@lru_cache
def learned_without_sampler(indices, samples, paradigm="bsp"):
    training = planned(InSubset(indices), workload={"samples": samples})
    return learned_by(training, paradigm)


def drawn(training, clocks=200, size=5):
    """Sample -> how often the slots together draw it in their first batches."""
    readers = [training.reader(slot) for slot in training.shards]
    return Counter(
        index
        for reader in readers
        for clock in range(clocks)
        for index in reader.samples(clock, size)
    )


# ---- which samples ----


@pytest.mark.parametrize(
    "make",
    [
        lambda _: SubsetRandomSampler(FOLD),
        lambda _: SubsetRandomSampler(torch.tensor(FOLD)),
        lambda _: Listed(FOLD),
        lambda _: Listed(FOLD, shuffled=False),
        lambda _: FOLD,
        lambda _: np.array(FOLD),
    ],
)
@pytest.mark.parametrize("paradigm", ["bsp", "asp"])
def test_a_run_of_selected_samples_is_one_of_a_subset(paradigm, make):
    """Bit for bit: batches, epochs and weights."""
    training = planned(Sampled(make))
    assert training.workload_samples == 3 * len(FOLD)
    learned = learned_by(training, paradigm)
    assert torch.equal(learned, learned_without_sampler(FOLD, 33, paradigm))
    assert not torch.equal(learned, learned_without_sampler(range(24), 33, paradigm))


def test_only_selected_samples_are_read_in_training_and_before():
    seen = set()

    class Watched(Pairs):
        def __getitem__(self, index):
            seen.add(index)
            return super().__getitem__(index)

    class Watching(Sampled):
        def train_set(self):
            return Watched(24)

    learn(planned(Watching(lambda _: FOLD)))
    assert seen == set(FOLD)


@pytest.mark.parametrize(
    "make",
    [
        SequentialSampler,
        RandomSampler,
        lambda samples: RandomSampler(samples, num_samples=5),
        lambda samples: DistributedSampler(samples, num_replicas=1, rank=0),
        lambda samples: Listed(range(len(samples))),
        lambda samples: None,
    ],
)
def test_a_sampler_of_all_samples_changes_nothing(make):
    training = planned(Sampled(make))
    assert not isinstance(training.model.train_set, SelectedSamples)
    assert torch.equal(learned_by(training), learned_without_sampler(range(24), 72))


def test_a_sampler_of_a_shorter_source_is_of_its_first_samples():
    training = planned(Sampled(lambda _: SequentialSampler(range(10))))
    assert set(drawn(training)) == set(range(10))


def test_an_index_that_occurs_twice_is_drawn_twice_as_often():
    training = planned(Sampled(lambda _: Listed([2, 5, 5, 9, 9, 9])))
    counts = drawn(training, clocks=120, size=3)
    for index, times in ((2, 1), (5, 2), (9, 3)):
        assert counts[index] / counts.total() == pytest.approx(times / 6, abs=0.01)


# ---- with which weights ----


@pytest.mark.parametrize("more", [{}, {"data": {"partition": "shared"}}], ids=str)
@pytest.mark.parametrize("rare", [0.01, 0.5])
def test_samples_are_drawn_by_their_weights_as_torch_does(rare, more):
    """Also where one sample weighs as much as all others."""
    weights = torch.ones(24)
    weights[7], weights[20] = rare / (1 - rare) * 22, 0
    training = planned(Sampled(lambda _: by_weights(weights)), **more)
    counts = drawn(training, clocks=400)
    assert counts[20] == 0
    number = counts.total()
    torch.manual_seed(0)
    theirs = Counter(WeightedRandomSampler(weights, number))
    for index, weight in enumerate(weights):
        share = float(weight / weights.sum())
        error = 4 * (share * (1 - share) / number) ** 0.5  # four standard deviations
        assert counts[index] / number == pytest.approx(share, abs=error + 1e-9)
        assert counts[index] / number == pytest.approx(theirs[index] / number, abs=2 * error + 1e-9)


def test_each_worker_draws_by_the_weights_and_others_than_the_next():
    weights = torch.arange(1.0, 25)
    training = planned(Sampled(lambda _: by_weights(weights)))
    one, other, _ = (training.reader(slot) for slot in training.shards)
    assert one.samples(0, 50) != other.samples(0, 50)
    for reader in (one, other):
        mean = np.mean([weights[reader.samples(clock, 50)].mean() for clock in range(100)])
        assert mean == pytest.approx(float((weights**2).sum() / weights.sum()), rel=0.02)


@pytest.mark.parametrize("make", [lambda _: FOLD, lambda _: by_weights(FEW)])
def test_stages_read_the_selected_samples(make):
    training = planned(Sampled(make), workers=[{"count": 2, "step_s": 0.1}])
    spec = spec_of(training, paradigms.make("decoupled", modules=2, groups=1))
    reader = reader_of(spec, next(iter(spec.batches)), training.model)
    drawn = {index for clock in range(60) for index in reader.samples(clock, 3)}
    assert drawn == set(read_selection(lambda: make(None), Pairs(24), "here").indices)


def test_with_replacement_a_pass_may_repeat_samples():
    training = planned(Sampled(lambda samples: RandomSampler(samples, replacement=True)))
    counts = drawn(training, clocks=1, size=24)
    assert len(counts) < 24
    assert max(counts.values()) > 3


@pytest.mark.parametrize("make", [lambda _: FOLD, lambda _: by_weights(np.ones(24))])
def test_batches_are_a_function_of_seed_slot_and_number(make):
    """In any order, in another process, and in a run that is resumed."""
    training = planned(Sampled(make))
    slot = next(iter(training.shards))
    reader = training.reader(slot)
    expected = {clock: reader.samples(clock, 4) for clock in (0, 9, 3, 27)}
    again = planned(Sampled(make)).reader(slot)
    for clock in (27, 3, 0, 9):
        assert again.samples(clock, 4) == expected[clock]
        assert again.samples(clock, 4)[:2] == again.samples(clock, 2) or clock  # of the first batch
    other = planned(Sampled(make), seed=5).reader(slot)
    assert [other.samples(clock, 4) for clock in expected] != list(expected.values())


class ReadOnce(Sampled):
    """In another process its sampler would choose others."""

    def __init__(self):
        super().__init__(None)
        self.indices = FOLD

    def sampler(self, samples):
        return self.indices

    def __getstate__(self):
        return {"indices": [5, 6]}


@pytest.mark.parametrize("workers", [0, 1])
def test_actors_have_the_choice_of_the_driver(workers):
    """As Ray carries model and batches to a worker; loader processes read the same."""
    training = planned(ReadOnce())
    model = pickle.loads(pickle.dumps(training.model))
    for slot in training.shards:
        batches = pickle.loads(pickle.dumps(training.batches(slot)))
        theirs = BatchReader(model.train_set, model.task.collate, batches, workers)
        mine = training.reader(slot)
        for clock in (0, 4):
            [one], [other] = mine.read(clock, [2]), theirs.read(clock, [2])
            assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("is_lazy", [False, True])
def test_a_data_set_of_a_built_in_task_has_a_sampler(is_lazy):
    """As if its arrays had only these rows."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(24, 4)).astype(np.float32), np.arange(24) % 3
    test = x[:5], y[:5]
    rows = sorted(FOLD)
    few = data_set("few", (x[rows], y[rows]), test, classes=3)
    whole = (x, y), test
    if is_lazy:
        whole = (TensorDataset(*map(torch.from_numpy, part)) for part in whole)
    sampled = data_set("all", *whole, classes=3, sampler=SubsetRandomSampler(FOLD))
    settings = config.validate(UNEQUAL | {"data": {"partition": "dirichlet", "alpha": 1.0}})
    model = torch.nn.Linear(4, 3)
    mine, other = (prepare(settings, model=model, data=data) for data in (sampled, few))
    torch.testing.assert_close(learned_by(mine), learned_by(other))


@pytest.mark.parametrize("setting", ["train_samples", "validation_samples"])
def test_a_part_of_a_data_set_with_a_sampler_is_refused(setting):
    rows = np.ones((9, 2), np.float32), np.arange(9) % 2
    data = data_set("rows", rows, rows, sampler=[1, 2, 3])
    with pytest.raises(ConfigError, match=naming(f"data.{setting}: sampler rows")):
        prepare(config.validate({"data": {setting: 5}}), model=torch.nn.Linear(2, 2), data=data)


class WithLabels(Sampled):
    def labels(self, samples):
        assert isinstance(samples, Pairs)  # its own
        return [index % 4 for index in range(24)]


class LabelledSubset(InSubset):
    def labels(self, samples):
        return [index % 4 for index in samples.indices]


def test_dirichlet_deals_out_the_selected_samples_by_their_own_labels():
    skewed = {"data": {"partition": "dirichlet", "alpha": 0.3}}
    training = planned(WithLabels(lambda _: FOLD), **skewed)
    expected = planned(LabelledSubset(FOLD), **skewed)
    assert all(map(np.array_equal, training.shards.values(), expected.shards.values()))
    dealt = [index for slot in training.shards for index in training.reader(slot).samples(0, 30)]
    assert set(dealt) <= set(FOLD)


def test_a_record_tells_samples_by_the_users_own_indices():
    """Of a batch whose loss is not finite."""
    training = planned(Sampled(lambda _: [21, 22, 23]), batch_size=2, workers=[{"step_s": 1}])
    training.task.criterion = lambda output, batch: (
        output.sum() * (torch.nan if output.requires_grad else 1.0)  # finite where it is measured
    )
    [pushed] = entries(learn(training)[0], Pushed)
    assert set(pushed.report.not_finite.samples) < {21, 22, 23}


# ---- what cannot be followed ----


class Changing(Listed):
    """Half of the samples, others each time."""

    def __init__(self, generator=None):
        self.indices, self.generator = range(12), generator

    def __iter__(self):
        return iter(torch.randperm(24, generator=self.generator)[:12].tolist())


class ByEpoch(Listed):
    passes = 0

    def __iter__(self):
        self.passes += 1
        return iter([(index + self.passes) % 24 for index in self.indices])


class Endless(Sampler):
    def __iter__(self):
        return repeat(0)


class OfAnotherLength(Listed):
    def __len__(self):
        return 9


class OwnWeights(WeightedRandomSampler):
    def __iter__(self):
        yield from torch.randint(0, 24, (self.num_samples,)).tolist()


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (lambda _: Changing(), "Changing"),
        (lambda _: Changing(torch.Generator()), "Changing"),
        (lambda _: ByEpoch(FOLD), "ByEpoch"),
        (lambda _: np.random.default_rng().permutation(24)[:12], "ndarray"),
        (lambda _: by_weights(np.random.default_rng().random(24)), "WeightedRandomSampler"),
        (lambda _: RandomSampler(range(10), num_samples=5), "RandomSampler"),
        (lambda _: OwnWeights(torch.ones(24), 9), "OwnWeights"),
        (lambda _: Endless(), "Endless __len__"),
        (lambda _: OfAnotherLength(FOLD[:5]), "OfAnotherLength 9 5"),
        (lambda _: OfAnotherLength(FOLD), "OfAnotherLength 9 more"),
        (lambda _: [], "list sample"),
        (lambda _: [3, 24], "list 24 24 23"),
        (lambda _: SubsetRandomSampler([-1]), "SubsetRandomSampler -1"),
        (lambda _: ["a"], "list 'a'"),
        (lambda _: BatchSampler(range(24), 3, False), "BatchSampler [0, 1, 2]"),
        (lambda _: 3, "int"),
        (lambda _: by_weights([1.0] * 23), "WeightedRandomSampler 23 24"),
        (lambda _: WeightedRandomSampler([1.0] * 24, 9, replacement=False), "replacement"),
        (lambda _: by_weights([0.0] * 24), "weights 0"),
        (lambda _: by_weights([-1.0] * 24), "weights 0"),
        (lambda _: by_weights([float("nan")] * 24), "weights 0"),
        (lambda samples: DistributedSampler(samples, 4, 1), "DistributedSampler 1 4"),
        (lambda samples: DistributedSampler(samples, 4, 0), "DistributedSampler 0 4"),
        (lambda samples: samples.sampler, "AttributeError"),
    ],
)
def test_a_sampler_that_cannot_be_followed_is_refused_by_name(make, facts):
    with pytest.raises(ConfigError, match=naming(f"Sampled: sampler: {facts}")) as error:
        planned(Sampled(make))
    assert len(str(error.value).splitlines()) <= 2


def test_a_batch_is_no_larger_than_the_selected_samples():
    with pytest.raises(ConfigError, match=naming("batch_size: 3 2 training samples")):
        planned(Sampled(lambda _: [1, 2]))


def test_the_generators_stay_as_they_were():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    read_selection(lambda: SubsetRandomSampler(FOLD), Pairs(24), "here")
    assert torch.equal(torch.rand(1), expected)

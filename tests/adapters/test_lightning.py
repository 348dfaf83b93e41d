"""A LightningModule, unchanged, is a task like any other."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from raysync import config
from raysync.config import ParadigmChoice
from raysync.errors import ConfigError
from raysync.predict.advise import advise
from raysync.training.adapters.lightning_update import update_of
from raysync.training.evaluation import ModelEvaluation
from raysync.training.preparation import prepare
from tests.builders.messages import tells
from tests.builders.virtual import learn, weights_of

pytestmark = pytest.mark.usefixtures("one_thread", "lightning")

MODULES = "tests.builders.lightning_modules"
WORKERS, ROUNDS, BATCH = 3, 8, 4
SETTINGS = {
    "engine": "virtual",
    "task": {"name": f"lightning:{MODULES}:Classifier", "data": f"{MODULES}:Points"},
    "batch_size": BATCH,
    "workers": [{"name": f"w{n}", "step_s": 1 + n} for n in range(WORKERS)],
    "workload": {"iterations_per_worker": ROUNDS},
    "evaluation": {"marks": 2, "batch_size": 7},
}


def planned(kind="Classifier", update=None, workload=None, data=None, **parameters):
    task = {"name": f"lightning:{MODULES}:{kind}", **parameters}
    if data is not None:
        task["data"] = data
    changes = {"task": task, "update": update or {}} | ({"workload": workload} if workload else {})
    return prepare(config.validate(SETTINGS | changes))


def configured(update=None, workload=None, **arguments):
    """The update of a module that configures its optimizer so."""
    return planned("Whole", update, workload, module=arguments).experiment.update


def name_of(update):
    """With or without arguments."""
    return getattr(update.optimizer, "name", update.optimizer)


@pytest.fixture(scope="module")
def training(lightning):
    return prepare(config.validate(SETTINGS))


def flat(module):
    return torch.cat([each.detach().reshape(-1) for each in module.parameters()])


def measured(training):
    """The metrics of the initial model."""
    evaluation = ModelEvaluation(training.model, training.build(), training.experiment)
    return evaluation.measure(evaluation.model.initial(), is_last=True)


def train_alone(training):
    """torch, one process, one batch made of the workers' batches, the module's own step and
    optimizer."""
    module = training.build()
    optimizer = module.configure_optimizers()
    readers = [training.reader(slot) for slot in training.shards]
    module.log = lambda *args, **kwargs: None
    for clock in range(ROUNDS):
        parts = [reader.read(clock, [BATCH])[0].content for reader in readers]
        x, y = (torch.cat(each) for each in zip(*parts, strict=True))
        optimizer.zero_grad()
        module.training_step((x, y), 0).backward()
        optimizer.step()
    return flat(module)


def test_bsp_equals_the_n_fold_batch_with_the_modules_own_step_and_optimizer(training):
    _, driver = learn(training, "bsp")
    expected = train_alone(training)
    size = len(expected)
    assert (weights_of(driver)[:size] - expected).abs().max().item() < 1e-5
    assert (expected - flat(training.build())).abs().max().item() > 1e-2  # it has learned


@pytest.mark.filterwarnings("ignore")  # what the Trainer says of its surroundings
@pytest.mark.parametrize("part", ["validate", "test"])
def test_metrics_are_those_of_lightnings_own_trainer(training, lightning, tmp_path, part):
    """The same weights; whole numbers of batches are not needed: 32 and 40 samples in batches of
    seven."""
    module, task = training.build(), training.task
    mine = measured(training)
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    samples = task.validation_set() if part == "validate" else task.test_set()
    loader = torch.utils.data.DataLoader(samples.samples, batch_size=7)
    (theirs,) = getattr(trainer, part)(module, loader, verbose=False)
    if part == "test":  # what is not named so by the module gets the prefix
        theirs = {f"test_{name.removeprefix('test_')}": value for name, value in theirs.items()}
    assert len(theirs) == 7
    assert not any(name.endswith("_last") for name in mine)
    for name, value in theirs.items():
        assert mine[name] == pytest.approx(value, abs=1e-6), name
    assert mine["loss"] == pytest.approx(mine["val_loss"])


def test_a_second_evaluation_starts_from_zero(training):
    """The module's torchmetrics objects are reset, and training does not touch them."""
    evaluation = ModelEvaluation(training.model, training.build(), training.experiment)
    initial = evaluation.model.initial()
    first = evaluation.measure(initial, is_last=False)
    batch = training.task.collate([training.task.train_set()[index] for index in range(4)])
    training.task.loss(evaluation.model.module.train(), batch)
    assert evaluation.measure(initial, is_last=False) == first


def test_what_training_adds_to_torchmetrics_does_not_stay(training):
    """It would grow for ever: there is no end of an epoch."""
    module, task = training.build(), training.task
    before = [value.clone() for value in module.accuracy.metric_state.values()]
    task.loss(module, task.collate([task.train_set()[index] for index in range(4)]))
    after = module.accuracy.metric_state.values()
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


def test_two_paradigms_meet_the_same_batches_in_every_process(training):
    """Random splits, too, are the same in a process that unpickled the task."""
    copied = pickle.loads(pickle.dumps(training))
    for slot in training.shards:
        here, there = (each.reader(slot).read(1, [BATCH])[0] for each in (training, copied))
        assert torch.equal(here.content[0], there.content[0])


def test_the_optimizer_is_taken_over_where_the_file_names_none():
    update = planned(data=f"{MODULES}:Points").experiment.update
    assert (name_of(update), update.lr, update.momentum) == ("sgd", 0.1, 0.9)
    update = configured(optimizer="RMSprop", arguments={"alpha": 0.9, "lr": 0.02})
    assert (name_of(update), update.lr) == ("rmsprop", 0.02)
    assert update.optimizer.parameters == {"alpha": 0.9}
    update = configured(arguments={"lr": 0.002, "betas": [0.8, 0.99]})
    assert (name_of(update), update.lr, update.betas) == ("adam", 0.002, (0.8, 0.99))
    update = configured(optimizer="AdamW", arguments={"lr": 0.002})
    assert (name_of(update), update.weight_decay) == ("adamw", 0.01)  # torch's default
    update = configured({"lr": 0.5, "lr_scaling": "none"}, optimizer="AdamW")
    assert (name_of(update), update.lr, update.lr_scaling) == ("adamw", 0.5, "none")
    update = configured({"optimizer": "sgd"}, optimizer="AdamW")
    assert (name_of(update), update.lr, update.weight_decay) == ("sgd", 0.05, 0.0)


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        ({}, "none"),
        ({"lr": 0.5}, "none"),
        ({"optimizer": "sgd"}, "none"),
        ({"optimizer": "sgd", "schedule": "constant"}, "none"),
        ({"lr_scaling": "linear"}, "linear"),
    ],
)
def test_the_rate_is_not_multiplied_by_the_workers_unless_the_file_says_so(update, expected):
    for optimizer in ("AdamW", "SGD"):
        assert configured(update, optimizer=optimizer).lr_scaling == expected


def test_advice_trains_with_the_modules_own_optimizer():
    """And says so in the file that it advises, which is run as it is."""
    target = {"metric": "val_loss", "at_most": 1.0}
    experiment = config.validate(SETTINGS | {"target": target, "update": {"momentum": 0.5}})
    sweep = config.validate(advise(experiment, choices=[ParadigmChoice(name="asp")]).sweep)
    own = prepare(sweep).experiment.update
    assert (name_of(own), own.lr, own.momentum, own.lr_scaling) == ("sgd", 0.1, 0.5, "none")
    rates = [row["set"]["update.lr"] for row in sweep.sweep.grid["paradigm"]]
    assert rates == [0.05, 0.1, 0.2]


@pytest.mark.parametrize(
    ("schedule", "arguments", "expected"),
    [
        ("MultiStepLR", {"milestones": [2, 3, 9], "gamma": 0.5}, ("milestones", (0.5, 0.75), 0.5)),
        ("StepLR", {"step_size": 1, "gamma": 0.5}, ("milestones", (0.25, 0.5, 0.75, 1.0), 0.5)),
        ("CosineAnnealingLR", {"T_max": 4}, ("cosine", (), 0.1)),
    ],
)
def test_the_schedule_is_that_of_torch_at_each_epoch(schedule, arguments, expected):
    from raysync.training.optim.lr_schedule import learning_rate

    epochs = 4
    training = planned(
        "Whole",
        workload={"epochs": epochs},
        module={"arguments": {"lr": 0.1}, "schedule": schedule, "schedule_arguments": arguments},
    )
    update = training.experiment.update
    assert (update.schedule.name, update.schedule.milestones, update.schedule.factor) == expected
    settings = training.build().configure_optimizers()
    for epoch in range(epochs):
        theirs = settings["optimizer"].param_groups[0]["lr"]
        assert learning_rate(update, epoch / epochs, 0) == pytest.approx(theirs)
        settings["optimizer"].step()
        settings["lr_scheduler"].step()


@pytest.mark.parametrize(("interval", "frequency"), [("step", 1), ("step", 4), ("epoch", 2)])
def test_a_scheduler_of_another_interval_is_refused_by_name(interval, frequency):
    module = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    about = {"scheduler": scheduler, "interval": interval, "frequency": frequency}
    with pytest.raises(ConfigError, match=f"StepLR.*{interval}") as caught:
        update_of("x", ([optimizer], [about]), module, (), 4)
    assert (str(frequency) in str(caught.value)) == (frequency > 1)


def test_what_is_taken_over_and_what_is_not_is_said():
    training = planned("WithHooks")
    assert any("on_train_epoch_end, on_validation_epoch_end" in each for each in training.remarks)
    assert any("optimizer: adam, lr: 0.001" in each for each in training.remarks)
    named = planned("Whole", {"optimizer": "adam", "schedule": "constant"})
    assert not any("Taken over" in each for each in named.remarks)


def test_the_primary_metric_is_the_first_whose_direction_is_known(training):
    assert (training.task.primary, training.task.higher_is_better) == ("val_loss", False)
    task = planned("Whole", metric={"name": "val_f1", "mode": "max"}).task
    assert (task.primary, task.higher_is_better) == ("val_f1", True)


@pytest.mark.parametrize(
    ("kind", "parameters", "message"),
    [
        ("Classifer", {}, "'Classifer'"),
        ("NotAModule", {}, "lightning's LightningModule"),
        ("points", {}, "lightning's LightningModule"),
        ("Whole", {"data": f"{MODULES}:Whole"}, "lightning's LightningDataModule"),
        ("Whole", {"modul": {}}, "modul"),
        ("Whole", {"module": {"widht": 3}}, "widht"),
        ("Whole", {"module": 3}, "arguments"),
        ("Whole", {"metric": {"name": "val_loss", "mode": "low"}}, "min or max"),
        ("Whole", {"metric": {"name": "val_los", "mode": "min"}}, "'val_loss'"),
        ("Classifier", {}, "train_dataloader LightningDataModule"),
        ("NoTrainingStep", {"data": f"{MODULES}:Points"}, "training_step"),
        ("StepWithoutLoss", {}, "training_step"),
        ("Manual", {}, "optimizes manually"),
        ("TwoOptimizers", {}, "2 optimizers"),
        ("HalfOptimized", {}, "2 4 model.2.weight"),
        ("BatchesOfItsOwn", {}, "batch_size=None"),
        ("OwnStep", {}, "optimizer_step OwnStep"),
        ("OwnTransfer", {}, "on_after_batch_transfer"),
        ("Whole", {"data": f"{MODULES}:TransferringPoints"}, "transfer_batch_to_device"),
        ("NeedsTrainer", {}, "`Trainer`"),
        ("TwoLoaders", {}, "DataLoader"),
        ("Sums", {}, "SumMetric"),
        ("Folded", {"module": {"sampler": "Batches"}}, "train_dataloader sampler Batches"),
        ("Folded", {"module": {"held_out": "Batches"}}, "val_dataloader sampler Batches"),
        (
            "Folded",
            {"module": {"sampler": "DistributedSampler"}},
            "train_dataloader DistributedSampler 1 4",
        ),
        (
            "Folded",
            {"module": {"held_out": "WeightedRandomSampler"}},
            "val_dataloader sampler WeightedRandomSampler",
        ),
        ("Whole", {"module": {"optimizer": "Adafactor"}}, "adafactor:"),
        (
            "Whole",
            {"module": {"schedule": "LambdaLR", "schedule_arguments": {"lr_lambda": [float]}}},
            "LambdaLR",
        ),
        (
            "Whole",
            {"module": {"schedule": "CosineAnnealingLR", "schedule_arguments": {"T_max": 7}}},
            "T_max workload's",
        ),
    ],
)
def test_mistakes_are_answered_in_a_line_or_two(kind, parameters, message):
    with pytest.raises(ConfigError) as caught:
        planned(kind, **parameters)
    assert tells(str(caught.value), message)
    assert len(str(caught.value).splitlines()) <= 2


def test_a_schedule_without_an_equivalent_is_left_out_if_the_file_names_one():
    arguments = {"schedule": "LambdaLR", "schedule_arguments": {"lr_lambda": [float]}}
    assert configured({"schedule": "cosine"}, **arguments).schedule.name == "cosine"


def test_dirichlet_deals_out_a_random_split_by_its_targets(training):
    skewed = prepare(config.validate(SETTINGS | {"data": {"partition": "dirichlet", "alpha": 0.1}}))
    task = skewed.task
    samples = task.train_set()
    labels = task.labels(samples)
    assert labels[5] == int(samples[5].content[1])
    counts = [np.bincount([labels[index] for index in shard]) for shard in skewed.shards.values()]
    even = [np.bincount([labels[index] for index in shard]) for shard in training.shards.values()]
    assert np.std([each.max() / each.sum() for each in counts]) > np.std(
        [each.max() / each.sum() for each in even]
    )


def test_a_loss_that_is_only_logged_is_the_loss():
    metrics = measured(planned("LogsItsLoss"))
    assert metrics["loss"] == metrics["val_loss"]


@pytest.mark.parametrize("sampler", ["SubsetRandomSampler", "BatchSampler"])
def test_samplers_choose_what_is_trained_on_and_what_is_measured(sampler):
    """As plain torch reads the same loaders, in whatever order."""
    training = planned("Folded", module={"sampler": sampler})
    module = training.build()
    folds = module.folds
    shares = {slot: len(shard) for slot, shard in training.shards.items()}
    drawn = [index for slot in shares for index in training.reader(slot).samples(0, shares[slot])]
    assert sorted(drawn) == sorted(folds["train"])
    expected = {tuple(x.tolist()) for batch, _ in module.train_dataloader() for x in batch}
    read = [training.reader(slot).read(0, [size])[0] for slot, size in shares.items()]
    assert {tuple(x.tolist()) for batch in read for x in batch.content[0]} == expected
    assert any(f"train_dataloader chooses {48}" in remark for remark in training.remarks)
    mine = measured(training)
    x, y = (torch.cat(each) for each in zip(*module.val_dataloader(), strict=True))
    with torch.no_grad():
        loss = nn.functional.cross_entropy(module.eval()(x), y)
    assert len(x) == 16
    assert mine["val_loss"] == pytest.approx(loss.item(), abs=1e-6)


def test_a_weighted_sampler_of_a_loader_is_followed():
    training = planned("Folded", module={"sampler": "WeightedRandomSampler"})
    fold = training.build().folds["train"]
    drawn = np.concatenate(
        [training.reader(s).samples(clock, 50) for s in training.shards for clock in range(100)]
    )
    assert set(drawn) == set(fold)
    share = np.isin(drawn, fold[:8]).mean()
    assert share == pytest.approx(3 * 8 / (3 * 8 + 40), abs=0.015)  # 15,000 draws: four deviations

"""Modules and data for Lightning, as its documentation writes them. Imported by name only, where
lightning is installed.
"""

import lightning as L  # noqa: N812
import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

FEATURES, CLASSES = 6, 3


def points(count, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES, generator=generator)
    samples = TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())
    samples.targets = samples.tensors[1]
    return samples


class Points(L.LightningDataModule):
    def __init__(self, count=96, batch_size=8):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage):
        if stage == "fit":
            whole = points(self.hparams.count + 32, seed=1)
            self.train, self.val = random_split(whole, [self.hparams.count, 32])
        if stage == "test":
            self.test = points(40, seed=2)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.hparams.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=self.hparams.batch_size)

    def test_dataloader(self):
        return DataLoader(self.test, batch_size=self.hparams.batch_size)


class Classifier(L.LightningModule):
    def __init__(self, width=8, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, CLASSES))
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=CLASSES)
        self.f1 = torchmetrics.F1Score(task="multiclass", num_classes=CLASSES, average="macro")
        self.seen = torchmetrics.MetricCollection(
            {
                "precision": torchmetrics.Precision("multiclass", num_classes=CLASSES),
                "recall": torchmetrics.Recall("multiclass", num_classes=CLASSES),
            },
            prefix="macro_",
        )

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.accuracy(logits, y)
        self.log("train_acc", self.accuracy, on_step=True, on_epoch=True)
        self.log("train_loss", loss)
        return loss

    def evaluated(self, batch, prefix):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.accuracy(logits, y)
        self.f1.update(logits, y)
        self.log_dict({f"{prefix}_loss": loss, f"{prefix}_acc": self.accuracy}, prog_bar=True)
        self.log(f"{prefix}_f1", self.f1)
        self.log(f"{prefix}_batch_f1", self.f1(logits, y))
        self.log(f"{prefix}_margin", logits.max(dim=1).values.mean(), batch_size=1)
        self.log(f"{prefix}_last", loss, on_step=True, on_epoch=False)
        self.seen.update(logits, y)
        self.log_dict(self.seen)
        return loss

    def validation_step(self, batch, batch_idx):
        return self.evaluated(batch, "val")

    def test_step(self, batch, batch_idx):
        self.evaluated(batch, "test")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)


class Whole(Classifier):
    """The module has its own loaders, and configures its optimizer as it is told."""

    def __init__(self, optimizer="Adam", arguments=None, schedule=None, schedule_arguments=None):
        super().__init__()
        self.save_hyperparameters()

    def train_dataloader(self):
        return DataLoader(points(64, seed=1), batch_size=8)

    def val_dataloader(self):
        return DataLoader(points(16, seed=2), batch_size=8)

    def configure_optimizers(self):
        given = self.hparams
        kind = getattr(torch.optim, given.optimizer)
        optimizer = kind(self.parameters(), **(given.arguments or {}))
        if given.schedule is None:
            return optimizer
        scheduler = getattr(torch.optim.lr_scheduler, given.schedule)(
            optimizer, **given.schedule_arguments
        )
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


class WithHooks(Whole):
    def on_train_epoch_end(self):
        pass

    def on_validation_epoch_end(self):
        pass


class Manual(Whole):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class TwoOptimizers(Whole):
    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), 0.1) for part in (self.model[0], self.model[2])]


class HalfOptimized(Whole):
    def configure_optimizers(self):
        return torch.optim.SGD(self.model[0].parameters(), 0.1)


class BatchesOfItsOwn(Whole):
    def train_dataloader(self):
        return DataLoader(points(64, seed=1), batch_size=None)


class OwnStep(Whole):
    def optimizer_step(self, *args, **kwargs):
        pass


class NeedsTrainer(Whole):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1 / self.trainer.max_epochs)


class NoTrainingStep(L.LightningModule):
    pass


class StepWithoutLoss(Whole):
    def training_step(self, batch, batch_idx):
        pass


class OwnTransfer(Whole):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch


class TransferringPoints(Points):
    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return batch


class LogsItsLoss(Whole):
    """As in Lightning's guide to metrics: nothing is returned."""

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", 2 * F.cross_entropy(self(batch[0]), batch[1]))


class TwoLoaders(Whole):
    def train_dataloader(self):
        return [super().train_dataloader(), super().train_dataloader()]


class Sums(Whole):
    def validation_step(self, batch, batch_idx):
        self.log("total", torch.ones(()), reduce_fx="sum")


class Folded(Whole):
    """One data set and two samplers, as in cross-validation."""

    def __init__(self, sampler="SubsetRandomSampler", held_out="SubsetRandomSampler"):
        super().__init__()
        order = torch.randperm(64, generator=torch.Generator().manual_seed(3)).tolist()
        self.folds = {"train": order[16:], "val": order[:16]}
        self.samplers = {"train": sampler, "val": held_out}

    def loader(self, part):
        fold, kind, samples = self.folds[part], self.samplers[part], points(64, seed=1)
        if kind == "Batches":
            return DataLoader(samples, batch_sampler=Batches(fold))
        if kind == "BatchSampler":
            batches = BatchSampler(SubsetRandomSampler(fold), 8, drop_last=False)
            return DataLoader(samples, batch_sampler=batches)
        if kind == "WeightedRandomSampler":
            weights = [3.0 if index in fold[:8] else float(index in fold) for index in range(64)]
            return DataLoader(samples, 8, sampler=WeightedRandomSampler(weights, 64))
        if kind == "DistributedSampler":
            return DataLoader(samples, 8, sampler=DistributedSampler(samples, 4, 1))
        return DataLoader(samples, 8, sampler=SubsetRandomSampler(fold))

    def train_dataloader(self):
        return self.loader("train")

    def val_dataloader(self):
        return self.loader("val")


class Batches:
    """Batches of a kind of its own."""

    def __init__(self, indices):
        self.indices = indices

    def __iter__(self):
        yield self.indices[:3]
        yield self.indices[3:]

    def __len__(self):
        return 2


class NotAModule:
    pass

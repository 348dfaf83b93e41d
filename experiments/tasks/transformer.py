"""The LightningModule of Lightning's own documentation, unchanged (the starter example of
lightning.ai/docs/pytorch/stable/common/lightning_module.html), and characters for it to predict.
"""

import lightning as L
import torch
from lightning.pytorch.demos import Transformer
from torch.utils.data import DataLoader, TensorDataset

from raysync.training.data.text import split, synthetic_text, token_ids


class LightningTransformer(L.LightningModule):
    def __init__(self, vocab_size):
        super().__init__()
        self.model = Transformer(vocab_size=vocab_size)

    def forward(self, inputs, target):
        return self.model(inputs, target)

    def training_step(self, batch, batch_idx):
        inputs, target = batch
        output = self(inputs, target)
        loss = torch.nn.functional.nll_loss(output, target.view(-1))
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.1)


class Characters(L.LightningDataModule):
    """Windows of a synthetic text, each with the window one character later."""

    def __init__(self, samples: int = 300, context: int = 35) -> None:
        super().__init__()
        self.samples, self.context = samples, context

    def setup(self, stage: str) -> None:
        """Cut the text into windows."""
        ids, _ = token_ids(synthetic_text())
        (x, y), (test_x, test_y) = split(ids, self.context, 0.1)
        count = self.samples
        self.train = TensorDataset(torch.from_numpy(x[:count]), torch.from_numpy(y[:count]))
        self.test = TensorDataset(torch.from_numpy(test_x[:100]), torch.from_numpy(test_y[:100]))

    def train_dataloader(self) -> DataLoader:
        """Return the training samples."""
        return DataLoader(self.train)

    def test_dataloader(self) -> DataLoader:
        """Return the test samples."""
        return DataLoader(self.test)

#!/usr/bin/env python3
"""A Trainer of Lightning's that starts its ranks by itself.

usage: lightning_trainer.py STRATEGY
"""

import sys

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).pow(2).mean()

    def on_train_end(self):
        print(f"trained: rank {self.trainer.global_rank} of {self.trainer.world_size}", flush=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy=sys.argv[1], max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=4))

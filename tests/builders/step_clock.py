"""The clock of step times under DDP, which users copy; `raysync/predict/README.md` says how."""

import time

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook


class StepClock:
    def __init__(self, ddp, rank):
        self.rank, self.step = rank, -2  # DDP still arranges its buckets in the first two steps
        self.file = open(f"steps-rank{rank}.csv", "w", buffering=1)  # noqa: PTH123, SIM115
        self.file.write("worker,step,seconds\n")
        ddp.register_comm_hook(self, StepClock.exchange)

    def start(self):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.begin = time.perf_counter()

    def exchange(self, bucket):
        if bucket.is_last():  # all gradients are computed, and these are not exchanged
            if torch.cuda.is_available():
                torch.cuda.current_stream().synchronize()
            if self.step >= 0:
                seconds = time.perf_counter() - self.begin
                self.file.write(f"rank{self.rank},{self.step},{seconds}\n")
            self.step += 1
        return allreduce_hook(None, bucket)

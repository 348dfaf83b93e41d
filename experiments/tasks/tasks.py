"""Train the examples of this folder under three paradigms on both engines, hold BSP against a plain
torch loop.

    python experiments/tasks/tasks.py DATA            prints the tables
    python experiments/tasks/tasks.py DATA --write    and writes results/tasks.md

`DATA` is a folder in which `fashion-png` is, as `fashion_png.py` writes it.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from labtables import Results, tabulate  # noqa: E402

import raysync  # noqa: E402
from raysync import config  # noqa: E402
from raysync.running.engines import engine_for  # noqa: E402
from raysync.running.run import run_in  # noqa: E402
from raysync.training.preparation import TrainingPlan, prepare  # noqa: E402
from raysync.training.worker.device import Device  # noqa: E402

LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["q_lin", "v_lin"]}
EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "Fashion-MNIST, PNG files": ("fashion-png", {}),
    "diabetes, regression": ("diabetes", {}),
    "tagging, DistilBERT": ("tagging", {}),
    "tagging, LoRA": ("tagging", {"task.lora": LORA}),
    "Lightning's transformer": ("transformer", {}),
}
ENGINES = ("virtual", "ray")
ROUNDS = (1, 2, 4)
"""The rounds after which BSP is held against a plain loop. The rounding of float32 grows with each,
in some models quickly."""
CLASSES = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def experiment_of(name: str, data: Path, output: str, **settings: Any) -> config.Experiment:
    """Return an experiment of this folder, with other settings."""
    plain = config.load(HERE / f"{name}.yaml").model_dump(mode="json", exclude_unset=True)
    if name == "fashion-png":
        plain["data"]["parameters"] = {"path": str(data / "fashion-png")}
    for key, value in settings.items():
        block, _, inner = key.partition(".")
        plain[block] = {**plain[block], inner: value} if inner else value
    return config.validate(plain | {"output": output})


def plain_loop(training: TrainingPlan, rounds: int) -> dict[str, torch.Tensor]:
    """Train as BSP should: in one process, a step of torch's optimizer for each round, on the mean
    loss of the workers' batches. Returns the model's parameters.
    """
    update, task = training.experiment.update, training.task
    module, device = training.build().train(), Device("cpu")
    kinds = {"weight_decay": update.weight_decay, "lr": update.lr}
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    plain = [p for name, p in named if p.dim() <= 1 or name.endswith("bias")]
    decayed = [p for name, p in named if not (p.dim() <= 1 or name.endswith("bias"))]
    groups = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
    if update.no_decay is None:
        groups = [{"params": [p for _, p in named]}]
    optimizer = CLASSES[update.optimizer.name.lower()](groups, **kinds)
    readers = [training.reader(slot) for slot in training.shards]
    for clock in range(rounds):
        optimizer.zero_grad()
        for reader in readers:
            [batch] = reader.read(clock, [training.experiment.batch_size])
            device.seed(reader.seed(clock))
            (task.loss(module, batch) / len(readers)).backward()
        optimizer.step()
    return {name: p.detach() for name, p in named}


def difference(name: str, data: Path, output: str, settings: dict[str, Any], rounds: int) -> float:
    """Return the largest difference of a parameter between BSP and the plain loop."""
    more = {"workload": {"iterations_per_worker": rounds}, "evaluation": {"marks": 1}}
    more |= {"engine": "virtual", "paradigm": "bsp", "micro_batch": None}
    training = prepare(experiment_of(name, data, output, **settings, **more))
    with engine_for(training.experiment) as engine:
        record = run_in(engine, training, training.experiment.paradigm)
    ours, plain = record.state_dict(), plain_loop(training, rounds)
    return max(float((ours[key] - value).abs().max()) for key, value in plain.items())


def results(data: Path, output: str) -> str:
    """Return the tables."""
    rows, proofs = [], []
    for label, (name, settings) in EXAMPLES.items():
        measured: dict[str, dict[str, raysync.RunRecord]] = {}
        for engine in ENGINES:
            experiment = experiment_of(name, data, output, **settings, engine=engine)
            training = prepare(experiment)
            with engine_for(experiment) as running:
                for choice in experiment.paradigms:
                    began = time.perf_counter()
                    record = run_in(running, training, choice)
                    print(label, engine, choice.label, f"{time.perf_counter() - began:.1f} s")
                    measured.setdefault(choice.label, {})[engine] = record
        metric = training.primary.name
        for paradigm, records in measured.items():
            first, *_ = (record.evaluations for record in records.values())
            ends = {engine: record.summary for engine, record in records.items()}
            rows.append(
                {
                    "example": label,
                    "metric": metric,
                    "paradigm": paradigm,
                    "untrained": f"{first[metric].iloc[0]:.4g}",
                    **{each: f"{end[f'final_{metric}']:.4g}" for each, end in ends.items()},
                    **{
                        f"waits, {each}": f"{end['wait_fraction']:.0%}"
                        for each, end in ends.items()
                    },
                }
            )
        apart = {rounds: difference(name, data, output, settings, rounds) for rounds in ROUNDS}
        proofs.append(
            {
                "example": label,
                "parameters": f"{sum(p.numel() for p in training.build().parameters()):,}",
                "trained": f"{training.parameters:,}",
                "bytes a push": f"{training.vector_bytes:,}",
                **{f"apart after {rounds}": f"{each:.0e}" for rounds, each in apart.items()},
            }
        )
    about = f"{os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}, one seed.\n"
    return f"{tabulate(rows)}\n\n{tabulate(proofs)}\n\n{about}"


def main() -> None:
    """Print the tables, or write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--write", action="store_true", help="into results/tasks.md as well")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as output:
        text = results(given.data, output)
    print(text)
    if given.write:
        Results(HERE).write_measured("tasks", text)


if __name__ == "__main__":
    main()

"""A synchronous answer for trainers that are not ours: torch DDP, Accelerate and Lightning."""

from __future__ import annotations

from collections.abc import Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined

from raysync.config import Experiment
from raysync.predict.candidates import Candidate
from raysync.training.server.lr_schedule import rate_factor

TITLES = {
    "ddp": "Unequal batches for torch's DistributedDataParallel.",
    "accelerate": "Unequal batches for Hugging Face Accelerate.",
    "lightning": "Unequal batches for Lightning.",
}


def snippets(
    experiment: Experiment, candidate: Candidate, shares: Mapping[str, int]
) -> dict[str, str]:
    """Return the name of each file -> its text: Python modules to copy from, or to import.

    Args:
        experiment: as it is advised.
        candidate: what is advised, a synchronous one.
        shares: worker slot -> the samples of its iteration; the ranks are in this order.
    """
    assert candidate.is_synchronous, "a snippet of what plain data-parallel training cannot do"
    update, workers = experiment.update, len(shares)
    factor = rate_factor(update, pushes=workers, workers=workers)
    templates = Environment(
        loader=PackageLoader("raysync.predict", "template"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return {
        f"advised_{name}.py": templates.get_template(f"{name}.py.jinja").render(
            title=title,
            subject=_plain(experiment.subject),
            advised=_plain(candidate.label),
            slots=[_plain(slot) for slot in shares],
            sizes=tuple(shares.values()),
            global_batch=sum(shares.values()),
            lr=update.lr * factor,
            lr_note=(
                f": {update.lr:g} times {factor:g}, for {workers} workers, as update.lr_scaling:"
                f" {update.lr_scaling} has it"
                if update.lr_scaling != "none"
                else ""
            ),
        )
        for name, title in TITLES.items()
    }


def _plain(text: str) -> str:
    """Return text that ends no docstring and escapes nothing."""
    return text.replace("\\", "/").replace('"', "'")

"""Name the bottleneck of each paradigm, and run each change that is tried: predicted, from as many
iterations as a diagnosis simulates, beside direct. Writes results/saturated-link.csv.

    python experiments/saturated-link/predictions.py && python experiments/labbook.py
"""

from pathlib import Path

import pandas as pd

from raysync import config
from raysync.config import Experiment, ParadigmChoice
from raysync.predict.diagnosis import diagnose, pushes_each
from raysync.predict.setting import Setting
from raysync.predict.variations import causes, remedies
from raysync.training.preparation import prepare
from raysync.virtual.engine import VirtualEngine

HERE = Path(__file__).parent
PARADIGMS = (
    {"name": "bsp"},
    {"name": "asp"},
    {"name": "bsp", "exchange": "ring"},
    {"name": "bsp", "exchange": "tree"},
)


def seconds(experiment: Experiment, choice: ParadigmChoice) -> float:
    """Run an experiment, and return the seconds of its work."""
    *_, last = VirtualEngine().run(prepare(experiment), choice.make())
    return last[-1].at


def main() -> None:
    """Write the table."""
    experiment = config.load(HERE / "saturated-link.yaml")
    training, rows = prepare(experiment), []
    for parameters in PARADIGMS:
        choice = ParadigmChoice.model_validate(parameters)
        setting = Setting.of(training, choice)
        assert setting is not None, "too large"
        direct_s = seconds(experiment, choice)
        found = diagnose(setting, direct_s)
        assert found is not None, "it does not finish"
        limit = found.plain()
        tried = list(remedies(setting))
        pushes = pushes_each(setting, 1 + len(list(causes(setting))) + len(tried))
        assert pushes is not None, "too large"
        scale = direct_s / (setting.shortened(pushes).seconds() or 0.0)
        rows.append(
            {
                "paradigm": choice.label,
                "kind": limit["kind"],
                "what": limit["what"],
                "without_s": limit["without_s"],
                "change": "",
                "predicted_s": direct_s,
                "direct_s": direct_s,
            }
        )
        for change in tried:
            cluster = change.setting.experiment.cluster
            changed = config.load(
                HERE / "saturated-link.yaml",
                [
                    f"cluster.server_shards={cluster.server_shards}",
                    f"cluster.server_placement={cluster.server_placement}",
                ],
            )
            rows.append(
                {
                    "paradigm": choice.label,
                    "change": change.what.partition(" (")[0],
                    "predicted_s": (change.setting.shortened(pushes).seconds() or 0.0) * scale,
                    "direct_s": seconds(changed, change.setting.choice),
                }
            )
    (HERE / "results").mkdir(exist_ok=True)
    frame = pd.DataFrame(rows).assign(seed=experiment.seed)
    frame.to_csv(HERE / "results" / "saturated-link.csv", index=False, float_format="%.6g")


if __name__ == "__main__":
    main()

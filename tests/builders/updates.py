"""Updates: their settings, with every optimizer that torch has for a server and every correction;
and the details of one.
"""

from raysync.training.server.apply_plan import ApplyPlan


def update_plan(samples, workers=None, progress=0.0, phase="", staleness=None, **others):
    """An update of so many samples of each push, of `w-0#1` and so on."""
    return ApplyPlan(
        workers=workers or [f"w-{push}#1" for push in range(len(samples))],
        samples=samples,
        progress=progress,
        phase=phase,
        staleness=staleness or [0] * len(samples),
        **{"version": 1} | others,
    )


TOO_FAST = {"lr": 1e20, "groups": [{"match": ["*"], "lr_factor": 1e20}]}
"""A step with which float32 overflows."""
UPDATES = {
    "sgd": {},
    "momentum": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "clipped": {"weight_decay": 0.01, "clip_norm": 0.5},
    "sum": {"combine": "sum", "lr_scaling": "none"},
    "projected": {"project_radius": 50.0},
    "adam": {"optimizer": "adam", "weight_decay": 0.01},
    "adamw": {"optimizer": "adamw", "clip_norm": 1e9},
    "amsgrad": {"optimizer": {"name": "adam", "amsgrad": True}},
    "adagrad": {"optimizer": "Adagrad", "weight_decay": 0.01},
    "adadelta": {"optimizer": "Adadelta", "weight_decay": 0.01},
    "adamax": {"optimizer": "Adamax", "weight_decay": 0.01},
    "asgd": {"optimizer": "ASGD", "weight_decay": 0.01},
    "radam": {"optimizer": "RAdam", "weight_decay": 0.01},
    "rmsprop": {"optimizer": {"name": "RMSprop", "centered": True}, "momentum": 0.9},
    "rprop": {"optimizer": "Rprop", "lr_scaling": "none"},
    "nadam": {"optimizer": "NAdam", "weight_decay": 0.01, "clip_norm": 0.5},
    "delayed": {
        "optimizer": {"name": "delayed-nesterov", "every": 2, "c": 0.25},
        "momentum": 0.9,
        "clip_norm": 0.5,
    },
    "mla": {"optimizer": "mla", "momentum": 0.9},
    "scaled": {"staleness_scaling": "inverse", "clip_norm": 0.5},
    "constant": {"delay_compensation": "constant", "momentum": 0.9},
    "adaptive": {"delay_compensation": "adaptive", "staleness_scaling": "inverse"},
}

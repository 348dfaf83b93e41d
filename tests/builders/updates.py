"""Settings of updates: every optimizer that torch has for a server, and every correction."""

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
    "scaled": {"staleness_scaling": "inverse", "clip_norm": 0.5},
    "constant": {"delay_compensation": "constant", "momentum": 0.9},
    "adaptive": {"delay_compensation": "adaptive", "staleness_scaling": "inverse"},
}

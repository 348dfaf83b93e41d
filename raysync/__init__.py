"""raysync: experiments with synchronisation paradigms in distributed deep learning, on Ray.

record = raysync.run({"model": "mlp", "paradigm": {"name": "ssp", "staleness": 3}})
record.summary["final_accuracy"], record.pushes, record.evaluations

The public names are those of `__init__.pyi`, and each is imported when it is used: a paradigm and
its tests work without torch and Ray being loaded.
"""

import lazy_loader

from raysync.torchvision_import import heal_torchvision

heal_torchvision()

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

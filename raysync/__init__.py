"""raysync runs experiments with synchronisation paradigms in distributed deep learning, on Ray.

record = raysync.run({"model": "mlp", "paradigm": {"name": "ssp", "staleness": 3}})
record.summary["final_accuracy"], record.pushes, record.evaluations

`__init__.pyi` lists the public names. Each is imported on its first use, so that a paradigm and its
tests load neither torch nor Ray.
"""

import lazy_loader

from raysync.torchvision_import import heal_torchvision

heal_torchvision()

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

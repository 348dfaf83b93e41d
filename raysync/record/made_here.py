"""Whether the folder that one is in made a record: what `environment.json` says about its making.

A record says on which machine it was made, in which working directory, and what number the file
system gave its folder. A copy has another number: one that was downloaded, sent, or unpacked. So
has what was restored from a backup, and a record behind a URI is always a copy; what was moved
within its file system keeps it.

The number is no secret. Who can read the folder of a record, or guesses the number that another one
will get, can write it into a record of theirs. This protects from records that come from elsewhere,
not from somebody who has access to this machine.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysync.record.storage import is_copy

KEY = "made"
"""The key in `environment.json`, and in `origin.yaml` of a sweep."""


def making(folder: Path) -> dict[str, Any]:
    """Describe the making of a record by this process.

    Args:
        folder: of the record; it exists.
    """
    number = None if is_copy(folder) else folder.stat().st_ino
    return {"host": platform.node(), "directory": str(Path.cwd()), "folder": number}


def is_made_here(folder: Path, made: Mapping[str, Any]) -> bool:
    """Say whether a process in this working directory has made a record, and it is no copy.

    Args:
        folder: of the record.
        made: what it says about its making.
    """
    return made.get("folder") is not None and dict(made) == making(folder)

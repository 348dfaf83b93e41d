"""Recognize records that this working directory has made, by what `environment.json` says.

A copied or downloaded folder gets another inode number, a moved one does not. The number is no
secret: this protects from foreign records, not from users of this machine.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysync.record.storage import is_copy

MAKER = "made"  # the key in `environment.json`, and in a sweep's `origin.yaml`


def this_maker(folder: Path) -> dict[str, Any]:
    """Describe this process as the maker of a record, whose folder exists."""
    inode = None if is_copy(folder) else folder.stat().st_ino
    return {"host": platform.node(), "directory": str(Path.cwd()), "folder": inode}


def is_made_here(folder: Path, maker: Mapping[str, Any]) -> bool:
    """Return whether a process in this working directory has made a record that is no copy."""
    return maker.get("folder") is not None and dict(maker) == this_maker(folder)

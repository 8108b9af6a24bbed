"""Files that a command writes: refused before its work when they cannot be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def check_writable(path: str) -> None:
    """Raises `OSError` unless a file can be written at `path`; `-`, standard output, always can.

    Nothing is made or changed.
    """
    file = Path(path)
    code = 0
    if path == "-":
        return
    if not path or "\0" in path or not file.parent.is_dir():
        code = errno.ENOENT
    elif file.is_dir():
        code = errno.EISDIR
    elif not os.access(file if file.exists() else file.parent, os.W_OK):
        code = errno.EACCES
    if code:
        raise OSError(code, os.strerror(code), path)

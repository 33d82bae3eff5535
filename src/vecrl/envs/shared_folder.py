"""A folder in which the environments of one `EnvCreator` keep counts and statistics that they share.

Knows no transform: each module that has such state says how it keeps it in a folder, by its method `share_state_`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from torch import nn

_MAKING = threading.Lock()


class SharedFolder:
    """A temporary folder of one machine, made when it is first needed or when the object is pickled.

    It is removed with the object that made it. Unpickled copies, as in worker processes, use it and do not remove it.
    """

    def __init__(self):
        self._path: str | None = None

    @property
    def path(self) -> Path:
        """Where it is."""
        with _MAKING:  # threads of one process make environments by the same object
            if self._path is None:
                self._path = tempfile.mkdtemp(prefix="vecrl-shared-")
                weakref.finalize(self, _remove, self._path, os.getpid())
            return Path(self._path)

    def attach(self, env: Any) -> None:
        """Makes the modules of `env` that share state keep it here, each class and position in a file of its own.

        Has no effect on another machine, where the folder does not exist.
        """
        seen: Counter[str] = Counter()
        for module in env.modules() if isinstance(env, nn.Module) else ():
            share = getattr(type(module), "share_state_", None)
            if share is not None and self.path.exists():
                name = type(module).__name__
                share(module, self.path / f"{name}-{seen[name]}")
                seen[name] += 1
                weakref.finalize(module, _keep, self)  # so that the folder stays as long as it is used here

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": str(self.path)}


def publish(path: Path, write: Callable[[Path], Any]) -> None:
    """Makes a file or folder `path` by `write`, which is given another path, unless `path` exists.

    Processes that call this at the same time end up with the `path` of one of them, and never see a part of it.
    """
    if path.exists():
        return
    draft = path.with_name(f"{path.name}-{uuid4().hex}")
    write(draft)
    try:
        draft.rename(path) if draft.is_dir() else os.link(draft, path)
    except OSError:
        if not path.exists():
            raise
    shutil.rmtree(draft) if draft.is_dir() else draft.unlink(missing_ok=True)


def _keep(_: SharedFolder) -> None: ...


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not where a fork of the owner ends
        shutil.rmtree(folder, ignore_errors=True)

"""A folder with the counts and statistics that the environments of one `EnvCreator` share.

A module with shared state moves it into a folder by its method `share_state_`.
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
    """A temporary folder on one machine, made on first use or when the object is pickled.

    It is removed with the object that made it. Unpickled copies, as in worker processes, use it but do not remove it.
    """

    def __init__(self):
        self._path: str | None = None

    @property
    def path(self) -> Path:
        """The path of the folder, which is made if it does not exist yet."""
        with _MAKING:  # several threads of a process may use the same object
            if self._path is None:
                self._path = tempfile.mkdtemp(prefix="vecrl-shared-")
                weakref.finalize(self, _remove, self._path, os.getpid())
            return Path(self._path)

    def attach(self, env: object) -> None:
        """Moves the shared state of the modules of `env` into the folder, one file per class and position.

        Has no effect on another machine, where the folder does not exist.
        """
        seen: Counter[str] = Counter()
        for module in shared_modules(env).values():
            if self.path.exists():
                name = type(module).__name__
                module.share_state_(self.path / f"{name}-{seen[name]}")
                seen[name] += 1
                weakref.finalize(module, _keep, self)  # keeps the folder as long as the module uses it

    def __getstate__(self) -> dict[str, object]:
        return {"_path": str(self.path)}


def shared_modules(env: object) -> dict[str, Any]:
    """Returns the modules of `env` that have a method `share_state_`, by their names."""
    modules = env.named_modules() if isinstance(env, nn.Module) else ()
    return {name: module for name, module in modules if hasattr(type(module), "share_state_")}


def publish(path: Path, write: Callable[[Path], object]) -> None:
    """Makes the file or folder `path` unless it exists: calls `write` with a temporary path, then renames the result.

    If several processes call this function at the same time, one result is kept. None of them sees a partial result.
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
    if os.getpid() == owner:  # a forked copy of the owner must not remove the folder
        shutil.rmtree(folder, ignore_errors=True)

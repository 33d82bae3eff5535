"""Every public name of TorchRL's environments can be imported from the same path in vecrl."""

import importlib
import pkgutil
import warnings
from collections.abc import Iterator

import pytest

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

PRIVATE_OR_HELPERS = {"lazy", "lazy_property", "T", "LoggerT", "CSVExperiment", "set_directory", "check_finite"}
PRIVATE_OR_HELPERS |= {"get_args"}


def _modules() -> Iterator[str]:
    for name in ("torchrl.envs", "torchrl.record"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            package = importlib.import_module(name)
            yield name
            yield from (found.name for found in pkgutil.walk_packages(package.__path__, f"{name}."))


def _is_compared(module: str) -> bool:
    private = any(part.startswith("_") for part in module.split("."))
    return not private


def _public_names(module: str) -> set[str]:
    theirs = importlib.import_module(module)
    defined = {name for name, value in vars(theirs).items() if getattr(value, "__module__", None) == module}
    names = {*getattr(theirs, "__all__", ()), *defined}
    return {name for name in names if not name.startswith(("_", "convert_"))} - PRIVATE_OR_HELPERS


def test_every_public_name_can_be_imported_from_the_same_path() -> None:
    pytest.importorskip("torchrl")
    missing = []
    for module in filter(_is_compared, _modules()):
        ours = importlib.import_module(module.replace("torchrl", "vecrl", 1))
        missing += [f"{module}.{name}" for name in sorted(_public_names(module)) if not hasattr(ours, name)]
    assert not missing


def test_names_of_language_models_raise_when_they_are_used() -> None:
    from vecrl.envs.llm import ChatEnv
    from vecrl.envs.llm.transforms import PolicyVersion

    for cls in (ChatEnv, PolicyVersion):
        with pytest.raises(NotImplementedError, match=f"TorchRL's {cls.__name__}.*It has LLMEnv"):
            cls()

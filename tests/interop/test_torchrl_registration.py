"""vecrl's classes as virtual subclasses of TorchRL's, whichever library is imported first."""

import subprocess
import sys
from functools import partial

import pytest
import torch

from vecrl import specs
from vecrl.envs import EnvBase, GymEnv, ParallelEnv, PendulumEnv, SerialEnv, StepCounter, TransformedEnv

pytestmark = [pytest.mark.torchrl, pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

LEAVES = {
    "Binary": specs.Binary(3),
    "Bounded": specs.Bounded(0, 1, (3,)),
    "Categorical": specs.Categorical(3),
    "MultiCategorical": specs.MultiCategorical([2, 3]),
    "MultiOneHot": specs.MultiOneHot([2, 3]),
    "OneHot": specs.OneHot(3),
    "Unbounded": specs.Unbounded((3,)),
    "NonTensor": specs.NonTensor(),
    "Choice": specs.Choice([specs.Categorical(2), specs.Categorical(2)]),
    "Composite": specs.Composite(x=specs.Unbounded((3,))),
    "Stacked": torch.stack([specs.Unbounded((3,)), specs.Unbounded((4,))]),
    "StackedComposite": torch.stack([specs.Composite(x=specs.Unbounded((n,))) for n in (3, 4)]),
}
# TorchRL's classes with another base class of the same names; the others have TensorSpec only
BASES = {
    "Binary": {"Categorical"},
    "MultiCategorical": {"Categorical"},
    "MultiOneHot": {"OneHot"},
    "StackedComposite": {"Composite"},
}


@pytest.mark.parametrize("name", LEAVES)
def test_specs_are_instances_of_torchrls_classes(name: str) -> None:
    from torchrl import data

    expected = {name, "TensorSpec", *BASES.get(name, ())}
    assert {other for other in [*LEAVES, "TensorSpec"] if isinstance(LEAVES[name], getattr(data, other))} == expected
    assert not isinstance(data.Unbounded(3), specs.TensorSpec)


@pytest.mark.parametrize("name", ["Binary", "Categorical", "MultiOneHot", "OneHot"])
def test_discrete_specs_have_torchrls_action_spaces(name: str) -> None:
    from torchrl import data
    from torchrl.modules import QValueModule

    spec = LEAVES[name]
    theirs = type(spec).__name__
    arguments = {"nvec": [2, 3]} if "Multi" in name else {"n": 3}
    expected = QValueModule(spec=getattr(data, theirs)(*arguments.values())).action_space
    assert QValueModule(spec=spec).action_space == expected


def test_torchrls_composites_contain_vecrls_specs() -> None:
    from torchrl import data

    inner = specs.Composite(x=specs.OneHot(3))
    outer = data.Composite(inner=inner, action=specs.Bounded(-1, 1, (3,)))
    outer.lock_(recurse=True)
    assert inner.is_locked
    outer.unlock_(recurse=True)
    assert not inner.is_locked
    for spec in (outer, outer.to("cpu"), outer.expand(4), torch.stack([outer, outer]), outer.expand(2)[0]):
        values = spec.rand()
        assert spec.is_in(values)
        assert spec.is_in(spec.project(values.apply(lambda value: value + 1)))
        assert values["inner", "x"].shape == (*spec.shape, 3)


def test_environments_are_instances_of_torchrls_classes() -> None:
    from torchrl import envs

    item = partial(GymEnv, "CartPole-v1")
    made: dict[str, EnvBase] = {
        "TransformedEnv": TransformedEnv(PendulumEnv(), StepCounter()),
        "SerialEnv": SerialEnv(1, item),
        "ParallelEnv": ParallelEnv(1, item, serial_for_single=True),
    }
    for name, env in made.items():
        found = {other for other in ["EnvBase", *made] if isinstance(env, getattr(envs, other))}
        assert found == {"EnvBase", name}
        env.close()


@pytest.mark.parametrize(
    "imports",
    ["torchrl.envs, vecrl.envs", "vecrl.envs, torchrl.envs", "vecrl.specs, torchrl.data, torchrl.envs, vecrl.envs"],
)
def test_either_library_may_be_imported_first(imports: str) -> None:
    code = f"""
import warnings
warnings.simplefilter("ignore")
import sys, {imports}
print(isinstance(vecrl.specs.OneHot(3), torchrl.data.OneHot), issubclass(vecrl.envs.GymEnv, torchrl.envs.EnvBase))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_vecrl_does_not_import_torchrl() -> None:
    code = "import sys, vecrl.specs, vecrl.envs, vecrl.interop.torchrl; print('torchrl' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

"""`Config`: names, sections, and files that load to the values that were saved."""

import copy
import math
import pickle
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vecrl.classic import Config
from vecrl.errors import VersionError


def test_attributes_items_and_sections_are_equivalent() -> None:
    config = Config({"seed": 3}, model={"layers": [64, {"kind": "tanh"}]})
    section = config.new_section("optim", lr=1e-3, name="adam", self=1)
    assert section is config.optim is config["optim"]
    config.optim.lr = 2e-3
    config["optim"]["lambda"] = 0.95
    assert (config.optim.lr, config.optim["lambda"], config.optim.self) == (2e-3, 0.95, 1)
    assert isinstance(config.model, Config)
    assert config.model.layers[1] == {"kind": "tanh"}
    assert (list(config), len(config), "seed" in config, "sed" in config) == (
        ["seed", "model", "optim"],
        3,
        True,
        False,
    )
    del config.seed
    del config["model"]
    assert list(config) == ["optim"]
    assert repr(Config(a=1, b={"c": "d"})) == "Config(a=1, b=Config(c='d'))"


def test_unknown_names_raise_with_a_suggestion() -> None:
    config = Config(learning_rate=1.0, seed=0)
    with pytest.raises(AttributeError, match=r"got 'learning_rte'\. Did you mean 'learning_rate'\?"):
        _ = config.learning_rte
    with pytest.raises(KeyError, match=r"one of \['learning_rate', 'seed'\], got 'x'\."):
        config["x"]
    with pytest.raises(KeyError, match="Did you mean 'seed'"):
        del config["seet"]
    assert not hasattr(config, "empty_result")


@pytest.mark.parametrize("name", ["save", "load", "new_section", "__dict__"])
def test_reserved_names_raise(name: Any) -> None:
    with pytest.raises(ValueError, match=r"reserved name .*'new_section', 'save', 'load'"):
        Config()[name] = 1
    with pytest.raises(ValueError, match="got the reserved name"):
        Config(model={name: 1})


def test_names_that_are_not_strings_raise(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("yes: 1")
    with pytest.raises(ValueError, match=r"setting to be a string, got True .*need quotes"):
        Config.load(tmp_path / "config.yaml")


def test_existing_sections_are_not_overwritten() -> None:
    config = Config(model=1)
    with pytest.raises(ValueError, match="got 'model', which is 1"):
        config.new_section("model", layers=3)


def test_copies_are_independent() -> None:
    config = Config(a={"b": [1]})
    for other in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        other.a.b.append(2)
        assert config.a.b == [1]
        assert config != other
    assert config != 3
    with pytest.raises(TypeError, match="hash"):
        hash(config)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]))
    | st.binary()
    | st.dates(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers(), inner)
        | st.dictionaries(st.text("abcdefgh_ é1-", min_size=1), inner)
    ),
    max_leaves=12,
)


@given(values=st.dictionaries(st.text("abcdefgh_ é1-", min_size=1), PLAIN))
def test_plain_values_round_trip(values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "config.yaml"
    config = Config(values)
    config.save(path)
    back = Config.load(path)
    assert back == config
    assert repr(back) == repr(config)  # distinguishes 1 from 1.0 and from True


def test_numpy_values_become_python_values(tmp_path: Path) -> None:
    config = Config(
        a=np.float32(0.5), b=np.int64(3), c=np.bool_(True), d=np.arange(3), e=(np.float64(1), [np.str_("x")])
    )
    config.save(tmp_path / "config.yaml")
    back = Config.load(tmp_path / "config.yaml")
    assert back == config
    assert repr(back) == "Config(a=0.5, b=3, c=True, d=[0, 1, 2], e=(1.0, ['x']))"


@pytest.mark.parametrize(
    "text", ["1e5", "1e-3", "yes", "null", "3", "2020-01-01", "~", "- a", "# no", " x ", "a: b", "é\n"]
)
def test_strings_that_look_like_other_types_stay_strings(text: str, tmp_path: Path) -> None:
    Config(text=text, texts=[text]).save(tmp_path / "config.yaml")
    assert Config.load(tmp_path / "config.yaml").text == text


def test_handwritten_yaml_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "lr: 1e-3\nbig: 5E6\nwhen: 2026-01-02\noptim:\n  betas: [0.9, 0.99]\nnan: .nan\n"
    )
    config = Config.load(tmp_path / "config.yaml")
    assert (config.lr, config.big, config.when) == (1e-3, 5e6, date(2026, 1, 2))
    assert config.optim.betas == [0.9, 0.99]
    assert math.isnan(config.nan)
    (tmp_path / "empty.yaml").write_text("")
    assert Config.load(str(tmp_path / "empty.yaml")) == Config()


def test_unsupported_values_raise_with_their_path(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"Expected model\.layers\.1 to consist of .*, got <function .* \(function\)"):
        Config(model={"layers": [1, test_copies_are_independent]}).save(tmp_path / "config.yaml")
    assert not (tmp_path / "config.yaml").exists()


@pytest.mark.parametrize("text", ["[1, 2]", "3", "just text"])
def test_other_files_raise(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match="to contain settings by name"):
        Config.load(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    "evil",
    [
        "a: !!python/object/apply:os.mkdir ['{here}']",
        "a: !!python/object/new:os.mkdir ['{here}']",
        "a: !!python/name:os.mkdir",
        "a: !!python/tuple [!!python/object/apply:os.mkdir ['{here}']]",
    ],
)
def test_loading_never_creates_arbitrary_objects(evil: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(evil.replace("{here}", str(tmp_path / "made")))
    with pytest.raises(
        ValueError, match=r"(?s)YAML with plain values, got an error: could not determine a constructor"
    ):
        Config.load(tmp_path / "config.yaml")
    assert not (tmp_path / "made").exists()


def test_missing_pyyaml_raises_with_install_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    config = Config(a=1)
    assert config.a == 1
    with pytest.raises(VersionError, match=r'pip install "vecrl\[cli\]"'):
        config.save(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text("a: 1")
    with pytest.raises(VersionError, match="PyYAML"):
        Config.load(tmp_path / "config.yaml")

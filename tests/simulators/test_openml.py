"""Contextual bandits from data sets: bundled ones, ARFF files, and the cache of the OpenML client, without network."""

import importlib
import socket
from pathlib import Path

import numpy as np
import pytest
import torch

from vecrl.envs import OpenMLEnv, SerialEnv
from vecrl.errors import SpaceError, VersionError
from vecrl.simulators import data_sets
from vecrl.simulators.data_sets import load
from vecrl.simulators.openml import make_batch, names
from vecrl.simulators.registry import find_entry
from vecrl.testing import BatchSimulatorConformance, EnvConformance
from vecrl.vector import make_vector_env

pytestmark = pytest.mark.simulators

ARFF = """@relation fruit
@attribute weight numeric
@attribute color {green,red}
@attribute constant numeric
@attribute kind {pear,apple,plum}
@data
1,green,7,apple
2,red,7,pear
3,?,7,apple
?,red,7,plum
6,red,7,?
"""
DESCRIPTION = """<oml:data_set_description xmlns:oml="http://openml.org/openml">
<oml:id>{id}</oml:id><oml:name>{name}</oml:name><oml:version>{version}</oml:version><oml:description>x</oml:description>
<oml:format>ARFF</oml:format><oml:upload_date>2020-01-01</oml:upload_date><oml:licence>Public</oml:licence>
<oml:url>http://localhost/x</oml:url><oml:file_id>1</oml:file_id>
<oml:default_target_attribute>kind</oml:default_target_attribute><oml:ignore_attribute>constant</oml:ignore_attribute>
<oml:visibility>public</oml:visibility><oml:status>active</oml:status><oml:md5_checksum>0</oml:md5_checksum>
</oml:data_set_description>"""


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def arff_path(tmp_path):
    path = tmp_path / "fruit.arff"
    path.write_text(ARFF)
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The client's cache with version 1 and 2 of one data set, and one without data."""
    import openml

    for data_id, name, version in ((7, "fruit", 1), (12, "fruit", 2), (13, "covertype", 3)):
        folder = tmp_path / "org/openml/www/datasets" / str(data_id)
        folder.mkdir(parents=True)
        (folder / "description.xml").write_text(DESCRIPTION.format(id=data_id, name=name, version=version))
        if name == "fruit":
            (folder / "dataset.arff").write_text(ARFF.replace("1,green", f"{version},green"))
    monkeypatch.setattr(openml.config, "_root_cache_directory", Path(tmp_path))
    return Path(openml.config.get_cache_directory()) / "datasets"


class TestBandit(BatchSimulatorConformance):
    num_steps = 10

    def make(self, num_envs):
        return make_batch("iris", num_envs)


class TestEnv(EnvConformance):
    num_steps = 5

    def make(self):
        return OpenMLEnv("digits", batch_size=[2])


class TestSerialEnv(EnvConformance):
    num_steps = 5

    def make(self):
        return SerialEnv(2, lambda: OpenMLEnv("wine"))


# -- the bandit


@pytest.mark.parametrize(("name", "features", "classes"), [("iris", 4, 3), ("digits", 64, 10), ("wine", 13, 3)])
def test_bundled_sets_have_their_sizes(name, features, classes):
    bandit = make_batch(name, 2)
    assert bandit.observation_space.shape == (features,)
    assert bandit.action_space.n == classes
    assert name in names()


def test_reward_is_one_for_the_class_of_the_context():
    env = make_vector_env("openml::breast_cancer", num_envs=64)
    data = load("breast_cancer")
    obs, _ = env.reset(seed=3)
    rows = [int(np.flatnonzero((data.features == row.numpy()).all(1))[0]) for row in obs]
    labels = torch.from_numpy(data.labels[rows])
    actions = labels.clone()
    actions[::2] = 1 - labels[::2]
    _, reward, terminated, _, infos = env.step(actions)
    assert reward.tolist() == [0.0, 1.0] * 32
    assert terminated.all()
    assert torch.equal(infos["final_obs"], obs)


def test_contexts_are_drawn_from_the_whole_set():
    bandit = make_batch("iris", 4000)
    found = {tuple(row) for row in bandit.reset([*range(4000)]).tolist()}
    assert found == {tuple(row) for row in load("iris").features.tolist()}


def test_features_are_standardized():
    features = load("wine").features
    assert np.allclose(features.mean(0), 0, atol=1e-5)
    assert np.allclose(features.std(0), 1, atol=1e-5)


# -- the environment over TensorDicts


@pytest.mark.parametrize("batch_size", [None, [3], [2, 3]])
def test_entries_have_the_layout_of_torchrl(batch_size):
    env = OpenMLEnv("iris", batch_size=batch_size)
    shape = tuple(batch_size or ())
    td = env.rand_step(env.reset())
    layout = {key: (tuple(value.shape[len(shape) :]), value.dtype) for key, value in td["next"].items()}
    flag = ((1,), torch.bool)
    reward = ((1,), torch.float32)
    assert layout == {
        "observation": ((4,), torch.float32),
        "y": ((), torch.int64),
        "reward": reward,
        "done": flag,
        "terminated": flag,
    }
    assert td["action"].shape == td.batch_size == shape
    assert td["action"].dtype == torch.int64
    assert torch.equal(td["next", "y"], td["y"])
    assert torch.equal(td["next", "reward"].squeeze(-1), (td["y"] == td["action"]).float())


def test_seeds_determine_the_contexts():
    env = OpenMLEnv("iris", batch_size=[8])
    first, second, other = (env.set_seed(seed) and env.reset() for seed in (5, 5, 99))
    assert torch.equal(first["observation"], second["observation"])
    assert not torch.equal(first["observation"], other["observation"])


def test_available_envs_have_the_names_of_torchrl():
    assert {"adult_num", "adult_onehot", "mushroom_num", "covertype", "shuttle", "magic", "iris"} <= {
        *OpenMLEnv.available_envs
    }


def test_pixels_are_refused():
    entry, name = find_entry("openml::iris")
    assert "pixels" in entry.limits
    with pytest.raises(TypeError, match="render_mode"):
        entry.make_batch(name, 1, render_mode="rgb_array")


# -- files


def test_arff_file_becomes_features_and_classes(arff_path):
    data = load(str(arff_path))
    assert data.classes == ("pear", "apple", "plum")
    assert data.labels.tolist() == [1, 0, 1]  # rows with a missing number or class are not used
    weights = np.array([1, 2, 3, 6])
    expected = (np.array([1, 2, 3]) - weights.mean()) / weights.std()
    assert np.allclose(data.features[:, 0], expected)
    assert data.features[:, 1:4].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]  # green, red, missing
    assert data.features[:, 4].tolist() == [0, 0, 0]  # the constant column


def test_categories_as_numbers(arff_path):
    data = load(str(arff_path), encoding="num")
    assert data.features.shape == (3, 3)
    assert data.features[0, 1] < data.features[1, 1] < data.features[2, 1]


def test_another_target(arff_path):
    assert load(str(arff_path), target="color").classes == ("green", "red")
    assert load(str(arff_path), target="constant").classes == ("7",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "price"}, "Expected a target among the columns weight, color, constant, kind, got 'price'"),
        ({"encoding": "hot"}, "Expected encoding 'num' or 'onehot'"),
    ],
)
def test_wrong_options_are_explained(arff_path, options, message):
    with pytest.raises(ValueError, match=message):
        OpenMLEnv(str(arff_path), **options)


def test_numbers_that_are_no_classes_are_refused(tmp_path):
    path = tmp_path / "x.arff"
    path.write_text("@relation x\n@attribute a numeric\n@attribute b numeric\n@data\n1,0.5\n2,1.5\n")
    with pytest.raises(ValueError, match="classes in the column 'b', got numbers with 2 values"):
        load(str(path))


def test_text_columns_are_refused(tmp_path):
    path = tmp_path / "x.arff"
    path.write_text("@relation x\n@attribute a string\n@attribute b {p,q}\n@data\nhello,p\n")
    with pytest.raises(ValueError, match="text column 'a'"):
        load(str(path))


# -- the client's cache


def test_cached_set_by_id_and_by_name(cache):
    assert [cached.id for cached in data_sets.cached_sets()] == ["7", "12", "13"]
    first, newest = load("7"), load("fruit")
    assert first.features.shape == newest.features.shape == (3, 4)  # the ignored column is not a feature
    assert first.features[0, 0] < newest.features[0, 0]  # version 2 has another first row
    assert load("fruit_num").features.shape == (3, 2)
    assert "fruit" in OpenMLEnv.available_envs
    assert OpenMLEnv("fruit_onehot").reset()["observation"].shape == (4,)


def test_cached_set_agrees_with_the_client(cache):
    import openml

    (cache / "7" / "features.xml").write_text(_features_xml())
    (cache / "7" / "qualities.xml").write_text('<oml:data_qualities xmlns:oml="http://openml.org/openml"/>')
    client_set = openml.datasets.get_dataset(7, download_data=False, download_qualities=False)
    assert client_set.name == "fruit"
    assert client_set.default_target_attribute == data_sets.cached_sets()[0].target
    table = openml.OpenMLDataset("fruit", "x", data_format="arff", data_file=str(cache / "7" / "dataset.arff"))
    values = table.get_data()[0]
    kinds = values["kind"].tolist()
    complete = [row for row in range(5) if kinds[row] == kinds[row] and values["weight"][row] == values["weight"][row]]
    data = load("7")
    assert [data.classes[label] for label in data.labels] == [kinds[row] for row in complete]


def _features_xml() -> str:
    attributes = [("weight", "numeric"), ("color", "nominal"), ("constant", "numeric"), ("kind", "nominal")]
    features = "".join(
        f"<oml:feature><oml:index>{index}</oml:index><oml:name>{name}</oml:name><oml:data_type>{kind}</oml:data_type>"
        f"<oml:is_target>{str(name == 'kind').lower()}</oml:is_target><oml:is_ignore>false</oml:is_ignore>"
        "<oml:is_row_identifier>false</oml:is_row_identifier>"
        "<oml:number_of_missing_values>0</oml:number_of_missing_values></oml:feature>"
        for index, (name, kind) in enumerate(attributes)
    )
    return f'<oml:data_features xmlns:oml="http://openml.org/openml">{features}</oml:data_features>'


def test_parquet_file_of_the_cache(cache):
    import pandas

    folder = cache / "7"
    (folder / "dataset.arff").unlink()
    table = pandas.DataFrame({"weight": [1.0, 2.0, None], "color": ["red", None, "red"], "kind": ["b", "a", "b"]})
    table.astype({"kind": "category"}).to_parquet(folder / "dataset_7.pq")
    data = load("7")
    assert data.classes == ("a", "b")
    assert data.labels.tolist() == [1, 0]
    assert data.features[:, 1:].tolist() == [[1, 0], [0, 1]]


def test_known_name_needs_its_version(cache):
    with pytest.raises(FileNotFoundError, match=r"got 'adult'.*get_dataset\('adult', version=1\)"):
        OpenMLEnv("adult_num")
    with pytest.raises(FileNotFoundError, match=r"get_dataset\(13, download_data=True\)"):
        OpenMLEnv("covertype")


def test_unknown_id_is_explained(cache):
    with pytest.raises(FileNotFoundError, match=r"get_dataset\(61\) puts it into the cache"):
        make_vector_env("openml::61", num_envs=2)


def test_missing_package_is_named(monkeypatch):
    def import_module(name):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return importlib.import_module(name)

    monkeypatch.setattr("vecrl.imports.import_module", import_module)
    with pytest.raises(VersionError, match=r"scikit-learn is not installed: pip install \"vecrl\[openml\]\""):
        OpenMLEnv("iris")
    with pytest.raises(ImportError, match="scikit-learn"):
        names()
    assert OpenMLEnv.available_envs == []


def test_step_before_a_reset_is_refused():
    env = OpenMLEnv("iris")
    with pytest.raises(SpaceError, match="reset before the first step"):
        env.step(env.rand_action())

"""Unity ML-Agents over its real protocol, with `tests/fixtures/unity_peer.py` as the build."""

import re
import shutil
import socket
import subprocess
import sys
import time
import uuid
import zipfile
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from vecrl.envs import MarlGroupMapType, UnityMLAgentsEnv, UnityMLAgentsWrapper, check_env_specs
from vecrl.errors import SpaceError, VersionError
from vecrl.simulators import unity
from vecrl.simulators.availability import available
from vecrl.simulators.unity import env_fn, start_agents
from vecrl.vector import make_vector_env
from vecrl.venv import SubprocVectorEnv

pytestmark = pytest.mark.unity
ECHO = uuid.UUID("6f1c0f2e-0000-4000-8000-0000000000ec")  # the channel on which the build sends messages back
PEER = Path(__file__).parents[1] / "fixtures" / "unity_peer.py"
WALKER, PICKER, DRIVER = ["agent_0", "agent_1"], ["agent_2", "agent_3"], "agent_4"


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    path = tmp_path_factory.mktemp("unity") / "peer.x86_64"
    path.write_text(f"#!{sys.executable}\n{PEER.read_text()}")
    path.chmod(0o755)
    return str(path.with_suffix(""))


@pytest.fixture(autouse=True)
def no_player_is_left():
    yield
    left = [process for process in psutil.Process().children() if "peer.x86_64" in " ".join(process.cmdline())]
    assert left == []


def start(build, *args, **kwargs):
    return start_agents(build, **{"timeout": 20, "additional_args": [*map(str, args)], **kwargs})


@pytest.fixture
def agents(build):
    found = start(build, "--steps", 3, seed=1)
    yield found
    found.close()


@pytest.fixture
def env(build):
    found = UnityMLAgentsEnv(build, timeout=20, seed=1, additional_args=["--steps", "3"])
    yield found
    if not found.is_closed:
        found.close()


def zeros(agents):
    return {name: unity.zeros_in(agents.action_space(name)) for name in agents.acting}


# -- agents, spaces, episodes


def test_agents_are_those_of_all_behaviors(agents):
    assert agents.possible_agents == [*WALKER, *PICKER, DRIVER]
    behaviors = {name: (agent.behavior, agent.group_id) for name, agent in agents.members.items()}
    assert behaviors == {
        **dict.fromkeys(WALKER, ("Walker?team=0", 0)),
        **dict.fromkeys(PICKER, ("Picker?team=1", 1)),
        DRIVER: ("Driver?team=0", 0),
    }


def test_spaces_are_those_of_the_behaviors(agents):
    obs_shapes = {
        name: {key: space.shape for key, space in agents.observation_space(name).items()}
        for name in ("agent_0", "agent_2", DRIVER)
    }
    assert obs_shapes == {
        "agent_0": {"vector": (2,)},
        "agent_2": {"vector": (2,), "action_mask": (5,)},
        DRIVER: {"vector": (2,), "observation_1": (3, 4, 4), "action_mask": (2,)},
    }
    assert str(agents.action_space("agent_0")) == "Box(-1.0, 1.0, (1,), float32)"
    assert str(agents.action_space("agent_2")) == "MultiDiscrete([3 2])"
    assert [*agents.action_space(DRIVER)] == ["continuous_action", "discrete_action"]


def test_actions_reach_their_agents(agents):
    first, _ = agents.reset()
    actions = {**zeros(agents), "agent_1": np.float32([0.5]), "agent_2": [2, 1], "agent_3": [1, 0]}
    actions[DRIVER] = {"continuous_action": np.float32([0.25, 0.5]), "discrete_action": [1]}
    observations, rewards, *_ = agents.step(actions)
    assert rewards["agent_2"] == 21
    assert rewards["agent_3"] == 10
    assert observations["agent_0"]["vector"][0] == first["agent_0"]["vector"][0]
    assert observations["agent_1"]["vector"][0] == pytest.approx(first["agent_1"]["vector"][0] + 0.05)
    assert rewards["agent_1"] == pytest.approx(-observations["agent_1"]["vector"][0])
    observations, *_ = agents.step(zeros(agents))
    assert observations[DRIVER]["vector"][0] == pytest.approx(first[DRIVER]["vector"][0] + 0.175)
    assert observations[DRIVER]["observation_1"][2, 3, 3] == observations[DRIVER]["vector"][0]


def test_action_masks_name_the_allowed_options(agents):
    observations, _ = agents.reset()
    assert observations["agent_2"]["action_mask"].tolist() == [0, 1, 1, 1, 1]
    observations, *_ = agents.step(zeros(agents))
    assert observations["agent_2"]["action_mask"].tolist() == [1, 0, 1, 1, 1]
    assert agents.observation_space("agent_2").contains(observations["agent_2"])


def test_an_agent_that_does_not_decide_keeps_its_observation(agents):
    first, _ = agents.reset()
    assert DRIVER in agents.acting
    observations, rewards, *_ = agents.step(zeros(agents))
    assert DRIVER in agents.agents
    assert DRIVER not in agents.acting
    assert np.array_equal(observations[DRIVER]["vector"], first[DRIVER]["vector"])
    assert rewards[DRIVER] == 0
    agents.step(zeros(agents))
    assert DRIVER in agents.acting


def test_agents_end_at_different_steps_until_a_reset(agents):
    agents.reset()
    ends = []
    while agents.agents:
        observations, _, terminations, truncations, _ = agents.step(zeros(agents))
        ends.append(([n for n in terminations if terminations[n]], [n for n in truncations if truncations[n]]))
    assert ends == [([], []), ([], []), ([], ["agent_0", "agent_2", DRIVER]), (["agent_1", "agent_3"], [])]
    assert set(observations) == {"agent_1", "agent_3"}
    assert observations["agent_1"]["vector"][1] == 4  # the final observation, not the first one of the next episode
    observations, infos = agents.reset()
    assert agents.agents == agents.possible_agents
    assert all(observations[name]["vector"][1] == 0 for name in agents.agents)
    assert infos == {name: {"group_reward": 0.0} for name in agents.agents}


def test_group_rewards_are_in_the_infos(agents):
    agents.reset()
    *_, infos = agents.step(zeros(agents))
    assert infos["agent_2"] == {"group_reward": 0.5}
    assert infos["agent_0"] == {"group_reward": 0.0}


def test_a_player_without_acting_agents_is_stepped_further(build):
    agents = start(build, "--behaviors", "Driver", "--steps", 4)
    agents.reset()
    observations, *_ = agents.step(zeros(agents))
    assert observations["agent_0"]["vector"][1] == 2
    agents.close()


def test_seeds_start_a_new_player(agents):
    first, _ = agents.reset(seed=5)
    process = agents.env._process.pid
    again, _ = agents.reset(seed=5)
    other, _ = agents.reset(seed=6)
    assert agents.env._process.pid != process
    assert first["agent_0"]["vector"].tolist() == again["agent_0"]["vector"].tolist()
    assert first["agent_0"]["vector"].tolist() != other["agent_0"]["vector"].tolist()


def test_without_a_seed_players_differ(build):
    starts = []
    for _ in range(2):
        agents = start(build, "--behaviors", "Walker")
        starts.append(agents.reset()[0]["agent_0"]["vector"].tolist())
        agents.close()
    assert starts[0] != starts[1]


# -- the connection


def test_server_listens_on_loopback_only(agents):
    port = agents.env._port
    listening = {
        connection.laddr.ip.removeprefix("::ffff:")
        for connection in psutil.Process().net_connections()
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    }
    assert listening == {"127.0.0.1"}
    addresses = [address for found in psutil.net_if_addrs().values() for address in found]
    for address in addresses:
        if address.family == socket.AF_INET and not address.address.startswith("127."):
            with pytest.raises(OSError), socket.create_connection((address.address, port), timeout=1):
                pass


def test_players_take_free_ports(build, agents):
    other = start(build)
    assert other.env._port != agents.env._port
    other.close()


def test_a_port_in_use_is_reported(build, agents):
    with pytest.raises(ConnectionError, match=r"got: .*worker number 0 is still in use"):
        start(build, base_port=agents.env._port)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--exit-code", 7], "return code 7"),
        (["--crash-at", 0], "return code 3"),
    ],
)
def test_a_player_that_ends_at_its_start_is_reported_at_once(build, args, message):
    begin = time.monotonic()
    with pytest.raises(ConnectionError, match=message):
        start(build, *args, timeout=60)
    assert time.monotonic() - begin < 20


def test_a_player_that_ends_in_a_step_is_reported_at_once(build):
    agents = start(build, "--crash-at", 2, timeout=60)
    agents.step(zeros(agents))
    begin = time.monotonic()
    with pytest.raises(ConnectionError, match="return code 3"):
        agents.step(zeros(agents))
    assert time.monotonic() - begin < 10
    with pytest.raises(ConnectionError, match="No Unity environment is loaded"):
        agents.step({})
    agents.close()


def test_a_player_that_does_not_connect_is_ended(build):
    with pytest.raises(TimeoutError, match=r"Expected a reply of the Unity player, got no message within 0.5 s"):
        start(build, "--silent", timeout=0.5)


def test_a_player_that_hangs_is_ended(build):
    agents = start(build, "--hang-at", 1, timeout=20)
    agents.env._communicator.timeout_wait = 0.5
    with pytest.raises(TimeoutError, match=r"no message within 0.5 s"):
        agents.step(zeros(agents))
    assert agents.env._process is None
    agents.close()


@pytest.mark.parametrize("damage", re.findall(r'^    "([a-z ]+)": ', PEER.read_text(), re.MULTILINE))
def test_damaged_messages_are_reported_or_are_harmless(build, damage):
    """The player is ended with the error, so nothing waits for its next message."""
    begin = time.monotonic()
    agents = start(build, "--damage", damage, timeout=5)
    errors = []
    for _ in range(4):
        try:
            agents.step(zeros(agents))
        except (ConnectionError, TimeoutError, SpaceError) as error:
            errors.append(error)
    agents.close()
    assert time.monotonic() - begin < 30
    assert not errors or isinstance(errors[0], SpaceError) or "No Unity environment is loaded" in str(errors[-1])


def test_a_build_that_does_not_exist_is_reported(tmp_path):
    with pytest.raises(ConnectionError, match="Couldn't launch"):
        start_agents(str(tmp_path / "nothing"))


def test_side_channels_reach_the_player_and_back(build):
    from mlagents_envs.side_channel.environment_parameters_channel import EnvironmentParametersChannel
    from mlagents_envs.side_channel.side_channel import SideChannel

    class Echo(SideChannel):
        def __init__(self):
            super().__init__(ECHO)
            self.received = []

        def on_message_received(self, msg):
            self.received.append(msg.get_raw_bytes())

    parameters, echo = EnvironmentParametersChannel(), Echo()
    agents = start(build, "--echo", side_channels=[parameters, echo])
    echo.received.clear()
    parameters.set_float_parameter("gravity", -3.5)
    agents.step(zeros(agents))
    agents.close()
    (message,) = echo.received
    assert message[:16] == parameters.channel_id.bytes_le
    assert b"gravity" in message
    assert np.float32(-3.5).tobytes() in message


def test_the_editor_connects_to_a_given_port(build):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    editor = subprocess.Popen([f"{build}.x86_64", "--mlagents-port", str(port)])
    env = UnityMLAgentsEnv(base_port=port, timeout=20)
    assert env.rollout(2).shape == (2,)
    with pytest.raises(SpaceError, match="Unity takes a seed at its start"):
        env._agents.reset(seed=1)
    env.close()
    assert editor.wait(20) == 0


def test_registered_builds_are_taken_from_the_registry_of_mlagents(build, tmp_path, monkeypatch):
    from mlagents_envs.registry import default_registry

    archive, manifest = tmp_path / "peer.zip", tmp_path / "manifest.yaml"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(f"{build}.x86_64", "Build/peer.x86_64")
    url = archive.as_uri()
    manifest.write_text(
        "environments:\n  - Peer:\n      expected_reward: 1\n      description: x\n"
        f"      linux_url: {url}\n      darwin_url: {url}\n      win_url: {url}\n"
    )
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(default_registry, "_manifests", [str(manifest)])
    monkeypatch.setattr(default_registry, "_REGISTERED_ENVS", {}, raising=False)
    env = UnityMLAgentsEnv(registered_name="Peer", timeout=20)
    assert set(env.group_map) == {"group_0", "group_1"}
    env.close()
    with pytest.raises(ValueError, match="Expected a name of ML-Agents' registry and a connection to download it"):
        UnityMLAgentsEnv(registered_name="Other")
    shutil.rmtree(tmp_path / "ml-agents-binaries", ignore_errors=True)


# -- dialects 1 and 2


def test_players_are_rows_of_a_vector_environment(build):
    name, options = f"unity::{build}", {"additional_args": ["--steps", "3", "--behaviors", "Walker"], "timeout": 20}
    env = make_vector_env(name, num_envs=2, backend="processes", **options)
    first, again, other = (env.reset(seed=seed)[0]["agent_0"]["vector"].tolist() for seed in (5, 5, 6))
    assert first == again
    assert first[0] != first[1] != other[1]
    ends = []
    for _ in range(4):
        obs, reward, terminated, truncated, _infos = env.step(env.action_space.sample())
        ends.append((terminated | truncated).tolist())
    assert ends == [[False, False]] * 3 + [[True, True]]
    assert reward.shape == (2,)
    assert obs["agent_1"]["vector"][:, 1].tolist() == [0, 0]  # the first observation of the next episode
    env.close()


def test_players_step_by_their_ids_in_dialect_2(build):
    env = SubprocVectorEnv([env_fn(build, timeout=20, additional_args=["--behaviors", "Picker"])] * 2)
    env.reset()
    _, reward, *_ = env.step([{"agent_0": np.array([2, 1]), "agent_1": np.array([1, 1])}], id=[1])
    assert reward.tolist() == [32]
    env.close()


# -- dialect 3


def layout(td):
    return {".".join(key): (tuple(value.shape), value.dtype) for key, value in td.items(True, True)}


def test_entries_have_the_layout_of_torchrl(env):
    flags = {"done": ((1,), torch.bool), "terminated": ((1,), torch.bool), "truncated": ((1,), torch.bool)}
    numbers = {"reward": ((1,), torch.float32), "group_reward": ((1,), torch.float32)}
    vector = {"vector": ((2,), torch.float32)}
    image = {"observation_1": ((3, 4, 4), torch.float32)}
    mask = {"action_mask": ((5,), torch.bool)}  # TorchRL has none
    observed = {
        **dict.fromkeys(("group_0.agent_0", "group_0.agent_1"), vector),
        **dict.fromkeys(("group_1.agent_2", "group_1.agent_3"), vector | mask),
        "group_0.agent_4": vector | image | {"action_mask": ((2,), torch.bool)},
    }
    walker, picker = {"continuous_action": ((1,), torch.float32)}, {"discrete_action": ((5,), torch.int32)}
    actions = {
        **dict.fromkeys(("group_0.agent_0", "group_0.agent_1"), walker),
        **dict.fromkeys(("group_1.agent_2", "group_1.agent_3"), picker),
        "group_0.agent_4": {"continuous_action": ((2,), torch.float32), "discrete_action": ((2,), torch.int32)},
    }

    def flat(*parts):
        return {f"{name}.{key}": value for part in parts for name in observed for key, value in part(name).items()}

    assert env.group_map == {"group_0": ["agent_0", "agent_1", "agent_4"], "group_1": ["agent_2", "agent_3"]}
    assert layout(env.reset()) == flat(observed.get, lambda _: flags)
    td = env.rand_step(env.reset())
    assert layout(td["next"]) == flat(observed.get, lambda _: flags | numbers)
    assert layout(td.exclude("next")) == flat(observed.get, actions.get, lambda _: flags)
    assert env.behavior_specs is not None
    check_env_specs(env)


def test_categorical_actions_are_indices(build):
    env = UnityMLAgentsEnv(build, timeout=20, categorical_actions=True)
    spec = env.full_action_spec["group_1", "agent_2", "discrete_action"]
    assert (tuple(spec.shape), spec.dtype) == ((2,), torch.int32)
    td = env.reset()
    td = td.update(env.full_action_spec.zero())
    td["group_1", "agent_2", "discrete_action"] = torch.tensor([2, 1], dtype=torch.int32)
    assert env.step(td)["next", "group_1", "agent_2", "reward"].item() == 21
    env.close()


@pytest.mark.parametrize(
    ("group_map", "groups"),
    [
        ("behavior", {"Walker": WALKER, "Picker": PICKER, "Driver": [DRIVER]}),
        (MarlGroupMapType.ALL_IN_ONE_GROUP, {"agents": [*WALKER, *PICKER, DRIVER]}),
        (MarlGroupMapType.ONE_GROUP_PER_AGENT, {name: [name] for name in (*WALKER, *PICKER, DRIVER)}),
        ({"a": [DRIVER, *WALKER], "b": PICKER}, {"a": [DRIVER, *WALKER], "b": PICKER}),
    ],
)
def test_group_maps(build, group_map, groups):
    env = UnityMLAgentsEnv(build, group_map=group_map, timeout=20)
    assert {group: list(names) for group, names in env.group_map.items()} == groups
    assert {group: list(env.reset()[group].keys()) for group in groups} == groups
    env.close()


def test_agents_have_episodes_of_their_own(env):
    rollout = env.rollout(9, break_when_any_done=False)
    steps = {name: rollout[key]["vector"][:, 1].int().tolist() for name, key in env._keys.items()}
    assert steps["agent_0"] == steps["agent_2"] == [0, 1, 2] * 3
    assert steps["agent_1"] == steps["agent_3"] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert steps[DRIVER] == [0, 0, 2] * 3
    truncated, terminated = (rollout["next", "group_1"][name] for name in PICKER)
    assert truncated["truncated"].flatten().tolist() == [False, False, True] * 3
    assert not truncated["terminated"].any()
    assert terminated["terminated"].flatten().tolist() == ([False] * 3 + [True]) * 2 + [False]
    finals = rollout["next", "group_1", "agent_2", "vector"][2::3, 1]
    assert finals.tolist() == [3, 3, 3]  # the true final observations


def test_random_actions_respect_the_masks(env):
    rollout = env.rollout(40, break_when_any_done=False)
    for name in PICKER:
        assert (rollout["next", "group_1", name, "reward"] >= 0).all()  # a masked option costs 100


def test_an_agent_that_is_done_and_not_reset_does_nothing(env):
    td = env.reset()
    for _ in range(3):
        td = env.rand_step(td)["next"]
    assert td["group_0", "agent_0", "done"].item()
    final = td["group_0", "agent_0", "vector"].clone()
    following = env.rand_step(td)["next"]
    assert torch.equal(following["group_0", "agent_0", "vector"], final)
    assert following["group_0", "agent_0", "done"].item()
    assert following["group_0", "agent_0", "reward"].item() == 0
    assert following["group_0", "agent_1", "done"].item()


def test_running_agents_cannot_be_reset_alone(env):
    td = env.reset()
    for name, key in env._keys.items():
        td[(*key, "_reset")] = torch.tensor([name == "agent_0"])
    with pytest.raises(SpaceError, match=r"got one of \['agent_0'\]. Unity resets all agents together"):
        env.reset(td)


def test_set_seed_starts_a_new_player(env):
    starts = []
    for seed in (3, 3, 4):
        env.set_seed(seed)
        starts.append(env.reset()["group_0", "agent_0", "vector"][0].item())
    assert starts[0] == starts[1] != starts[2]


def test_wrapper_takes_an_environment_of_mlagents(build):
    from mlagents_envs.environment import UnityEnvironment

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    library_env = UnityEnvironment(build, base_port=port, timeout_wait=20, additional_args=["--behaviors", "Walker"])
    env = UnityMLAgentsWrapper(library_env, categorical_actions=True)
    assert env.behavior_specs is library_env.behavior_specs or list(env.behavior_specs) == ["Walker?team=0"]
    env.set_seed(3)  # has no effect on a running player
    assert env.rollout(3).shape == (3,)
    env.close()
    assert env.is_closed


def test_wrong_arguments_are_refused(build):
    with pytest.raises(ValueError, match="Expected file_name or registered_name, got both"):
        UnityMLAgentsEnv(build, "Peer")
    with pytest.raises(TypeError, match="Expected a UnityEnvironment of ML-Agents, got 3"):
        UnityMLAgentsWrapper(3)


def test_a_missing_library_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlagents_envs", None)
    for name in [name for name in sys.modules if name.startswith("mlagents_envs.") or name.endswith("unity_player")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(VersionError, match=r'pip install "vecrl\[unity\]", then pip install --ignore-requires-python'):
        UnityMLAgentsEnv("x")
    assert "--ignore-requires-python" in (available("unity").missing or "")

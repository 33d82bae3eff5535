"""Damaged and hostile checkpoints, policies and networks are errors that name the file. They run no code, and need
little time and memory."""

from __future__ import annotations

import io
import json
import pickle
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tests.security.limited_calls import LimitedCalls, Outcome

from vecrl import checkpoint
from vecrl.policy.saved_policy import SavedPolicy
from vecrl.snapshot import capture
from vecrl.snapshot.serialization import dump

MOST_SECONDS, MOST_MB = 1.0, 200.0
PREFIX = struct.Struct("<8sIIQQ")


def aligned(size: int) -> int:
    return -(-size // 64) * 64


def forge(header: Any, body: bytes = b"", *, magic: bytes = b"VECRLCKP", version: int = 2, total: int = -1) -> bytes:
    """Returns a file with a correct checksum of its header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    start = aligned(PREFIX.size + len(text))
    prefix = PREFIX.pack(magic, version, zlib.crc32(text), len(text), start + len(body) if total < 0 else total)
    return prefix + text + bytes(start - len(prefix) - len(text)) + body


def forge_blob(tag: str, dtype: object, shape: object, start: Any, size: Any, body: bytes = bytes(64)) -> bytes:
    """Returns a file with one array, tensor or bytes, with a correct checksum of its memory."""
    part = body[start : start + size] if isinstance(start, int) and isinstance(size, int) else b""
    entry = {"kind": "state", "data": {"$": tag, "v": 0}}
    return forge({"data": {"x": entry}, "blobs": [[dtype, shape, start, size, zlib.crc32(part)]]}, body)


def forge_value(*nodes: Any, root: Any = (0,), **changes: Any) -> bytes:
    """Returns a file with one value. Its state has these nodes."""
    root = list(root) if isinstance(root, tuple) else root
    state = {"vecrl": "state", "format": 3, "about": {}, "root": root, "nodes": list(nodes), **changes}
    return forge_entries({"x": {"kind": "value", "data": state}})


def forge_entries(entries: object) -> bytes:
    return b"".join(map(bytes, dump(entries)))


def array_node(**node: Any) -> dict[str, Any]:
    return {"is": "array", **node}


def literal(kind: str, value: object) -> bytes:
    return forge_value({"is": "literal", "of": kind, "value": value})


def doubling(count: int) -> list[dict[str, Any]]:
    """Returns nodes of tuples: each contains the next one twice."""
    pairs: list[dict[str, Any]] = [{"is": "tuple", "items": [[i + 2], [i + 2]]} for i in range(count)]
    return [*pairs, {"is": "tuple", "items": [1]}]


def seeded(pool: int) -> bytes:
    seeds = {"entropy": 1, "key": [], "pool": pool, "children": 0}
    return forge_value({"is": "bits", "of": "PCG64", "state": {}, "seed_sequence": seeds})


def tensor_on(device: str) -> bytes:
    return forge_value({"is": "tensor", "value": torch.zeros(1), "device": device})


FULL = b"\xff" * 64
VIEW = {"shape": [1], "strides": [1], "dtype": np.empty(0, "u1")}
BASE = array_node(value=np.zeros(4))
NUMBERS = b'{"data":%s,"blobs":[]}'

HEADERS: dict[str, bytes] = {
    "nothing": b"",
    "half of the name": b"VECR",
    "name only": b"VECRLCKP",
    "another name": forge(NUMBERS % b"1", magic=b"VECRLCKQ"),
    "version 0": forge(NUMBERS % b"1", version=0),
    "version of the future": forge(NUMBERS % b"1", version=2**32 - 1),
    "too long": forge(NUMBERS % b"1", total=2**63),
    "too short": forge(NUMBERS % b"1", total=0),
    "pickle": pickle.dumps({"x": 1}),
    "pickle after the name": b"VECRLCKP" + pickle.dumps({"x": 1}),
    "pickle as header": forge(pickle.dumps({"x": 1})),
    "text": b"#!/bin/sh\ntrue\n" * 10,
    "empty header": forge(b""),
    "UTF-16": forge((NUMBERS % b"1").decode().encode("utf-16")),
    "no UTF-8": forge(NUMBERS % b'"\xff"'),
    "long number": forge(NUMBERS % (b"1" * 5000)),
    "deep lists": forge(NUMBERS % (b"[" * 200_000 + b"]" * 200_000)),
    "deep dicts": forge(NUMBERS % (b'{"a":' * 200_000 + b"1" + b"}" * 200_000)),
    "no blobs": forge({"data": 1}),
    "blobs by name": forge({"data": 1, "blobs": {"a": 1}}),
    "blobs are texts": forge({"data": 1, "blobs": ["abcde"]}),
    "blob of four numbers": forge({"data": 1, "blobs": [[None, [], 0, 0]]}),
    "data are a list": forge({"data": [1], "blobs": []}),
    "unknown tag": forge({"data": {"x": {"kind": "state", "data": {"$": "mine:Evil", "v": 0}}}, "blobs": []}),
    "tag is a list": forge({"data": {"x": {"kind": "state", "data": {"$": [1], "v": 0}}}, "blobs": []}),
    "tag without value": forge({"data": {"x": {"kind": "state", "data": {"$": "tuple"}}}, "blobs": []}),
    "unknown blob": forge({"data": {"x": {"kind": "state", "data": {"$": "bytes", "v": 3}}}, "blobs": []}),
    "unknown float": forge({"data": {"x": {"kind": "state", "data": {"$": "float", "v": "1e9"}}}, "blobs": []}),
    "complex of three": forge(
        {"data": {"x": {"kind": "state", "data": {"$": "complex", "v": [1, 2, 3]}}}, "blobs": []}
    ),
    "unhashable key": forge({"data": {"$": "dict", "v": [[{"a": 1}, 2]]}, "blobs": []}),
    "unknown kind": forge_entries({"x": {"kind": "pickle", "data": b""}}),
    "kind is a list": forge_entries({"x": {"kind": ["value"], "data": {}}}),
    "entry without data": forge_entries({"x": {"kind": "value"}}),
    "entry is a number": forge_entries({"x": 5}),
    "no mapping": forge_entries([1, 2]),
}

BLOBS: dict[str, bytes] = {
    "negative size": forge_blob("array", "|u1", [63], 0, -1),
    "negative size of bytes": forge_blob("bytes", None, [], 0, -1),
    "negative start": forge_blob("array", "|u1", [32], -64, 32),
    "beyond the end": forge_blob("array", "|u1", [64], 0, 100),
    "starts beyond the end": forge_blob("bytes", None, [], 2**62, 10),
    "negative dimension": forge_blob("array", "|u1", [-1], 0, 64),
    "negative dimension of a tensor": forge_blob("tensor", "uint8", [-64], 0, 64),
    "two negative dimensions": forge_blob("tensor", "uint8", [-8, -8], 0, 64),
    "huge array": forge_blob("array", "<f8", [2**40], 0, 64),
    "huge tensor": forge_blob("tensor", "float64", [2**40], 0, 64),
    "huge dimensions beside 0": forge_blob("array", "<f8", [0, 2**62, 2**62], 0, 0),
    "huge dimensions of a tensor beside 0": forge_blob("tensor", "float32", [0, 2**62, 2**62], 0, 0),
    "dimension beyond 64 bits beside 0": forge_blob("tensor", "float32", [0, 2**70], 0, 0),
    "many dimensions": forge_blob("array", "|u1", [1] * 200, 0, 1),
    "dimension is text": forge_blob("array", "|u1", ["64"], 0, 64),
    "dimension is a fraction": forge_blob("tensor", "uint8", [64.5], 0, 64),
    "shape is a number": forge_blob("array", "|u1", 64.5, 0, 64),
    "start is text": forge_blob("array", "|u1", [64], "0", 64),
    "size is a fraction": forge_blob("array", "|u1", [64], 0, 64.0),
    "other size": forge_blob("array", "<f8", [64], 0, 64),
    "wrong dtype": forge_blob("array", "mine:Evil", [64], 0, 64),
    "dtype of objects": forge_blob("array", "|O", [8], 0, 64),
    "dtype of texts with pointers": forge_blob("array", "T", [4], 0, 64, FULL),
    "dtype with an expression": forge_blob("array", "(__import__('mine'),)i4", [1], 0, 64),
    "dtype with an open bracket": forge_blob("array", "(1,i4", [1], 0, 64),
    "dtype without size": forge_blob("array", "V0", [1], 0, 0),
    "dtype of nested objects": forge_blob("array", [["a", [["b", "|O"]]]], [8], 0, 64),
    "dtype with huge fields": forge_blob("array", [["a", "|u1", [2**62]]], [1], 0, 64),
    "dtype with negative fields": forge_blob("array", [["a", "|u1", [-1]]], [1], 0, 64),
    "dtype is a number": forge_blob("array", 5, [64], 0, 64),
    "function of torch": forge_blob("tensor", "load", [64], 0, 64),
    "module of torch": forge_blob("tensor", "hub", [64], 0, 64),
    "letters that do not exist": forge_blob("scalar", "<U1", [], 0, 4, FULL),
}

VALUES: dict[str, bytes] = {
    "no state": forge_entries({"x": {"kind": "value", "data": {}}}),
    "no nodes": forge_entries({"x": {"kind": "value", "data": {"vecrl": "state", "format": 3, "root": [0]}}}),
    "no facts": forge_entries(
        {"x": {"kind": "value", "data": {"vecrl": "state", "format": 3, "root": 1, "nodes": []}}}
    ),
    "other format": forge_value({"is": "list", "items": []}, format=99),
    "node is a number": forge_value(5),
    "node without kind": forge_value({"items": []}),
    "unknown kind of node": forge_value({"is": "mine:Evil"}),
    "kind of node is a list": forge_value({"is": ["list"]}),
    "no items": forge_value({"is": "list"}),
    "reference beyond the nodes": forge_value({"is": "list", "items": [[7]]}),
    "reference is text": forge_value({"is": "list", "items": [["a"]]}),
    "reference to two nodes": forge_value({"is": "list", "items": [[0, 0]]}),
    "reference is a dict": forge_value({"is": "list", "items": []}, root={"a": 1}),
    "cycle of a tuple": forge_value({"is": "tuple", "items": [[0]]}),
    "cycle of a frozenset": forge_value({"is": "frozenset", "items": [[0]]}),
    "cycle of a view": forge_value(array_node(base=[0], at=0, **VIEW)),
    "deep tuples": forge_value(
        *[{"is": "tuple", "items": [[i + 1]]} for i in range(5000)], {"is": "list", "items": []}
    ),
    "doubling tuples as a key": forge_value({"is": "dict", "items": [[[1], 1]]}, *doubling(60)),
    "doubling tuples in a set": forge_value({"is": "set", "items": [[1]]}, *doubling(60)),
    "doubling tuples in a frozenset": forge_value({"is": "frozenset", "items": [[1]]}, *doubling(60)),
    "list as a key": forge_value({"is": "dict", "items": [[[1], 1]]}, {"is": "list", "items": []}),
    "array of many objects": forge_value(array_node(items=[], shape=[2 * 10**8])),
    "array of objects beyond the memory": forge_value(array_node(items=[], shape=[2**50])),
    "array of -1 objects": forge_value(array_node(items=[], shape=[-1])),
    "array is a list": forge_value(array_node(value=[1.0])),
    "view before its base": forge_value(array_node(base=[1], at=-8, **VIEW), BASE),
    "view beyond its base": forge_value(array_node(base=[1], at=40, **VIEW), BASE),
    "view with a long stride": forge_value(
        array_node(base=[1], at=0, **{**VIEW, "shape": [2], "strides": [2**62]}), BASE
    ),
    "view of -1 elements": forge_value(array_node(base=[1], at=0, **{**VIEW, "shape": [-1]}), BASE),
    "view of a list": forge_value(array_node(base=[1], at=0, **VIEW), {"is": "list", "items": []}),
    "scalar is a dict": forge_value({"is": "scalar", "value": {}}),
    "bytearray of a length": forge_value({"is": "bytearray", "value": 10**11}),
    "deque of -1": forge_value({"is": "deque", "items": [], "maxlen": -1}),
    "range without steps": forge_value({"is": "range", "items": [0, 1, 0]}),
    "decimal": literal("decimal.Decimal", "__import__('mine')"),
    "fraction by 0": literal("fractions.Fraction", "1/0"),
    "fraction with a huge exponent": literal("fractions.Fraction", "1e999999999"),
    "date": literal("datetime.date", "2020-99-99"),
    "duration": literal("datetime.timedelta", [10**12, 0, 0]),
    "function as a literal": literal("os.system", "touch marker"),
    "class that is unknown": forge_value({"is": "object", "of": "mine.Evil", "attrs": {}}),
    "class of a module": forge_value({"is": "object", "of": "os.system", "attrs": {}}),
    "class with a colon": forge_value({"is": "list", "items": [[1]]}, {"is": "object", "of": "mine:Evil", "attrs": {}}),
    "class with its own state": forge_value({"is": "own", "of": "mine.Evil", "plain": {}}),
    "enumeration that is unknown": forge_value({"is": "enum", "of": "mine.Evil", "name": "a", "value": 1}),
    "tuple of a class": forge_value({"is": "tuple", "of": "mine.Evil", "items": []}),
    "bit generator that is unknown": forge_value({"is": "bits", "of": "mine.Evil", "state": {}, "seed_sequence": None}),
    "huge pool of a seed": seeded(10**6),
    "generator of a number": forge_value({"is": "generator", "bits": 5}),
    "random without words": forge_value({"is": "random", "version": 3, "words": np.zeros(5, np.uint64), "gauss": None}),
    "random state of another": forge_value({"is": "random_state", "state": {"bit_generator": "PCG64"}}),
    "emulator": forge_value({"is": "ale", "state": b"", "last": None}),
    "simulator": forge_value({"is": "mujoco_data", "state": b"", "model": [0]}),
    "library that is not loaded": forge_value({"is": "jax", "value": np.zeros(1), "key": "mine"}),
    "function of a library": forge_value({"is": "pygame_value", "of": "quit", "values": []}),
    "tensor that is a list": forge_value({"is": "tensor", "value": [1.0], "device": "cpu"}),
    "tensor on an unknown device": tensor_on("mine"),
    "tensor on a device that is absent": tensor_on("xpu"),
    "tensor on a device that is a module": tensor_on("hpu"),
    "generator of torch on an unknown device": forge_value({"is": "torch_generator", "state": BASE, "device": "mine"}),
    "size of texts": forge_value({"is": "size", "value": ["a"]}),
}


def write_files(folder: Path, files: dict[str, bytes], suffix: str) -> list[str]:
    """Writes files with numbers as names and returns their paths."""
    paths = [folder / f"{number}{suffix}" for number in range(len(files))]
    for path, content in zip(paths, files.values(), strict=True):
        path.write_bytes(content)
    return list(map(str, paths))


def excess(outcome: Outcome, most_mb: float = MOST_MB) -> bool:
    """Whether a call was killed, took long, needed much memory, or imported a package."""
    return bool(outcome.status or outcome.seconds > MOST_SECONDS or outcome.memory_mb > most_mb or outcome.imported)


def check_refused(
    limited: LimitedCalls, call: str, files: dict[str, bytes], folder: Path, error: str = "CheckpointError"
) -> None:
    """Checks that a call raises an error that names the file, for each of them."""
    paths = write_files(folder, files, ".file")
    outcomes = limited(call, paths)
    problems = [
        f"{name}: {outcome}"
        for name, path, outcome in zip(files, paths, outcomes, strict=True)
        if excess(outcome) or outcome.error[:1] != [error] or path not in outcome.message
    ]
    assert not problems, "\n".join(["", *problems])
    assert not limited.marker.exists()


@pytest.mark.parametrize("files", [HEADERS, BLOBS, VALUES], ids=["headers", "blobs", "values"])
def test_crafted_checkpoints_are_refused(limited: LimitedCalls, tmp_path: Path, files: dict[str, bytes]) -> None:
    check_refused(limited, "load", files, tmp_path)


# -- damaged checkpoints


def real_checkpoints(folder: Path) -> list[bytes]:
    """Returns checkpoints of values, of an environment with generators, and of a network with an optimizer."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 -- GlobalGenerators saves this generator
    torch.manual_seed(0)
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    net = torch.nn.Linear(3, 2)
    jobs: list[dict[str, Any]] = [
        {
            "nested": (1, {2: b"x", "$": 1j}, [{1, 2}, frozenset({3}), {"a": float("nan")}]),
            "array": np.arange(6, dtype="i2").reshape(2, 3).T,
            "fields": np.zeros(3, [("x", "<f4"), ("y", "<i2", (2,))]),
            "tensor": torch.ones(2, dtype=torch.bfloat16),
        },
        {"env": env, "generator": np.random.default_rng(0), "dice": random.Random(0), "step": 7},
        {"net": net, "optimizer": torch.optim.Adam(net.parameters()), "globals": checkpoint.GlobalGenerators()},
    ]
    for number, job in enumerate(jobs):
        checkpoint.save(folder / f"real{number}", **job)
    return [(folder / f"real{number}").read_bytes() for number in range(len(jobs))]


def flip(raw: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 8)):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)


def truncate(raw: bytearray, rng: random.Random) -> None:
    del raw[rng.randrange(len(raw)) :]


def duplicate(raw: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(raw))
    part = raw[start : start + rng.randint(1, 400)]
    place = rng.randrange(len(raw))
    raw[place:place] = part


def swap(raw: bytearray, rng: random.Random) -> None:
    size = rng.randint(1, len(raw) // 4)
    a, b = rng.randrange(len(raw) - size), rng.randrange(len(raw) - size)
    raw[a : a + size], raw[b : b + size] = raw[b : b + size], raw[a : a + size]


def remove(raw: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(raw))
    del raw[start : start + rng.randint(1, 100)]


def change_number(raw: bytearray, rng: random.Random) -> None:
    """Replaces a digit, most of which are in the header, by another text of JSON."""
    places = [place for place, byte in enumerate(raw) if 48 <= byte < 58]
    place = rng.choice(places)
    raw[place : place + 1] = rng.choice([b"9", b"-1", b"1e9", b"99999999999", b"null", b"[0]", b'"a"', b"true", b"{}"])


def change_word(raw: bytearray, rng: random.Random) -> None:
    """Replaces a word of the header by another one of the header."""
    words = [word for word in bytes(raw[PREFIX.size :]).split(b'"') if word.isalpha()]
    if words:
        place = raw.index(b'"' + rng.choice(words) + b'"') + 1
        raw[place : raw.index(b'"', place)] = rng.choice(words)


def with_checksums(raw: bytes, parts: list[bytes]) -> bytes:
    """Corrects the sizes and the checksums of a damaged file: the damage reaches the parser."""
    header, body = parts
    try:
        data = json.loads(header)
        for blob in data["blobs"]:
            start, size = blob[2:4]
            blob[4] = zlib.crc32(body[start : start + size])
        header = json.dumps(data).encode()
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):  # the header is no longer JSON of that form
        pass
    return forge(header, body)


def sections(raw: bytes) -> list[bytes]:
    """Returns the header and the arrays of a file."""
    length = PREFIX.unpack_from(raw)[3]
    return [raw[PREFIX.size : PREFIX.size + length], raw[aligned(PREFIX.size + length) :]]


def mutations(originals: list[bytes], count: int) -> dict[str, bytes]:
    """Returns damaged copies. Every second one has correct checksums."""
    changes: list[Callable[[bytearray, random.Random], None]] = [flip, truncate, duplicate, swap, remove]
    result = {}
    for number in range(count):
        rng = random.Random(number)
        raw = originals[rng.randrange(len(originals))]
        if number % 2:
            change = rng.choice([*changes, change_number, change_number, change_word, change_word])
            parts = sections(raw)
            index = 0 if change in (change_number, change_word) else rng.randrange(2)
            part = bytearray(parts[index])
            change(part, rng)
            parts[index] = bytes(part)
            result[f"{number} {change.__name__} {'body' if index else 'header'}"] = with_checksums(raw, parts)
        else:
            change = rng.choice(changes)
            damaged = bytearray(raw)
            change(damaged, rng)
            result[f"{number} {change.__name__}"] = bytes(damaged)
    return result


def test_damaged_checkpoints_load_or_raise(limited: LimitedCalls, tmp_path: Path) -> None:
    originals = real_checkpoints(tmp_path)
    files = {**{f"original {n}": raw for n, raw in enumerate(originals)}, **mutations(originals, 500)}
    outcomes = limited("load", write_files(tmp_path, files, ".ckpt"))
    named = dict(zip(files, outcomes, strict=True))
    problems = [
        f"{name}: {outcome}"
        for name, outcome in named.items()
        if excess(outcome) or (outcome.error and outcome.error[0] != "CheckpointError")
    ]
    assert not problems, "\n".join(["", *problems])
    assert not any(named[f"original {n}"].error for n in range(len(originals)))
    assert sum(bool(outcome.error) for outcome in outcomes) > 250


def test_empty_tuples_are_not_taken_for_what_they_replace(tmp_path: Path) -> None:
    values = {"alone": (), "nested": {"a": (), "b": [()], "c": ((),)}}
    checkpoint.save(tmp_path / "a.ckpt", **values)
    assert checkpoint.load(tmp_path / "a.ckpt") == values


# -- restoring into objects


def with_position(generator: Any, position: int) -> dict[str, Any]:
    """Returns the state of a generator with another position in its buffer of numbers."""
    state = capture(generator)
    for node in state["nodes"]:
        fields = node.get("state", {})
        if "buffer_pos" in fields:
            fields["buffer_pos"] = position
        elif "state" in fields:
            fields["state"]["pos"] = position
    return dict(state)


@pytest.mark.parametrize("position", [-(10**9), 10**9])
def test_generators_never_read_outside_their_buffer(limited: LimitedCalls, tmp_path: Path, position: int) -> None:
    """NumPy does not check positions that it is given: a number outside the buffer ends the process."""
    generators: dict[str, Any] = {
        "MT19937": np.random.Generator(np.random.MT19937(0)),
        "Philox": np.random.Generator(np.random.Philox(0)),
        "RandomState": np.random.RandomState(0),
    }
    cases = []
    for name, generator in generators.items():
        for suffix, state in (("valid", capture(generator)), ("hostile", with_position(generator, position))):
            path = tmp_path / f"{name}-{suffix}.ckpt"
            path.write_bytes(forge_entries({name: {"kind": "object", "data": state}}))
            cases.append((str(path), name))
    outcomes = limited("load into", cases)
    problems = [
        f"{path}: {outcome}"
        for (path, _), outcome in zip(cases, outcomes, strict=True)
        if excess(outcome) or ("StateError" in outcome.error) != path.endswith("hostile.ckpt")
    ]
    assert not problems, "\n".join(["", *problems])


def environment_states() -> dict[str, Any]:
    """Returns hostile states of CartPole, by what is wrong."""
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)

    def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        state = dict(capture(env))
        change(state)
        return state

    def add(node: dict[str, Any]) -> Callable[[dict[str, Any]], object]:
        def change(state: dict[str, Any]) -> None:
            state["nodes"].append(node)
            state["nodes"][0]["attrs"]["added"] = [len(state["nodes"]) - 1]

        return change

    return {
        "no facts": changed(lambda state: state.pop("about")),
        "facts are a list": changed(lambda state: state.update(about=[1])),
        "other space": changed(lambda state: state["about"].update(action_space="Discrete(9)")),
        "no attributes": changed(lambda state: state["nodes"][0].pop("attrs")),
        "attributes are a list": changed(lambda state: state["nodes"][0].update(attrs=[1])),
        "other class": changed(lambda state: state["nodes"][0].update(of="mine.Evil")),
        "class that must be imported": changed(add({"is": "object", "of": "mine.Evil", "attrs": {}})),
        "class with a colon": changed(add({"is": "object", "of": "mine:Evil", "attrs": {}})),
        "class of subprocess": changed(add({"is": "object", "of": "subprocess.Popen", "attrs": {}})),
        "class of main": changed(add({"is": "object", "of": "__main__.Evil", "attrs": {}})),
        "own state": changed(add({"is": "own", "of": "mine.Evil", "plain": {}})),
        "slots of an object without": changed(lambda state: state["nodes"][0].update(slots={"__class__": 1})),
        "fraction with a huge exponent": changed(
            add({"is": "literal", "of": "fractions.Fraction", "value": "1e999999999"})
        ),
    }


def test_hostile_states_of_environments_are_refused(limited: LimitedCalls, tmp_path: Path) -> None:
    states = environment_states()
    files = {name: forge_entries({"env": {"kind": "object", "data": state}}) for name, state in states.items()}
    paths = write_files(tmp_path, files, ".ckpt")
    outcomes = limited("load into", [(path, "env") for path in paths])
    problems = [
        f"{name}: {outcome}"
        for name, path, outcome in zip(files, paths, outcomes, strict=True)
        if excess(outcome) or "StateError" not in outcome.error or path not in outcome.message
    ]
    assert not problems, "\n".join(["", *problems])
    assert not limited.marker.exists()


# -- policies and networks

SIZES = {"obs_length": 4, "act_length": 2}
POLICY = asdict(SavedPolicy("Some-v1", "Linear(obs_length, act_length)", SIZES, torch.zeros(10)))
NORM = {"count": torch.tensor(2.0), "mean": torch.zeros(4), "m2": torch.ones(4)}
WIDE = "Linear(8000, 8000%s)"


class Evil:
    """Imports a module when it is unpickled."""

    def __reduce__(self):
        return __import__, ("mine",)


def torch_file(content: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def policy_file(**changes: Any) -> bytes:
    return torch_file({"format": 1, **POLICY, **changes})


def inflated(raw: bytes, entry: str, megabytes: int) -> bytes:
    """Returns the zip file `raw` with zeros appended to the entry with this name; compression makes it small."""
    file = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(raw)) as source,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, True, 1) as target,
    ):
        for name in source.namelist():
            with target.open(name, "w") as part:
                part.write(source.read(name))
                for _ in range(megabytes if name.endswith(entry) else 0):
                    part.write(bytes(2**20))
    return file.getvalue()


POLICIES: dict[str, Callable[[], bytes]] = {
    "pickle": lambda: pickle.dumps(POLICY),
    "object in it": lambda: policy_file(env=Evil()),
    "tuple": lambda: torch_file((1, 2)),
    "format is a tensor": lambda: torch_file({**POLICY, "format": torch.ones(2)}),
    "negative size": lambda: policy_file(constants={"obs_length": -4, "act_length": 2}),
    "huge size": lambda: policy_file(constants={"obs_length": 10**30, "act_length": 2}),
    "large network": lambda: policy_file(network="Linear(10**6, 10**6)"),
    "large network on a device": lambda: policy_file(network=WIDE % ", device='cpu'"),
    "many numbers that are one": lambda: policy_file(network=WIDE % "", parameters=torch.zeros(1).expand(64_008_000)),
    "many means that are one": lambda: policy_file(
        constants={"obs_length": 10**9, "act_length": 2},
        network="Linear(4, act_length)",
        norm={**NORM, "mean": torch.zeros(1).expand(10**9), "m2": torch.zeros(1).expand(10**9)},
    ),
    "parameters without memory": lambda: policy_file(parameters=torch.zeros(10, device="meta")),
    "mean without memory": lambda: policy_file(norm={**NORM, "mean": torch.zeros(4, device="meta")}),
    "count of one dimension": lambda: policy_file(norm={**NORM, "count": torch.ones(1)}),
    "sparse parameters": lambda: policy_file(parameters=torch.zeros(10).to_sparse()),
    "count is empty": lambda: policy_file(norm={**NORM, "count": torch.ones(0)}),
    "import in the network": lambda: policy_file(network="__import__('mine')"),
    "list as a key": lambda: policy_file(network="Linear({[1]: 2}, 3)"),
    "long network": lambda: policy_file(network="Tanh() >> " * 20_000 + "Tanh()"),
}


def test_hostile_policies_are_refused(limited: LimitedCalls, tmp_path: Path) -> None:
    """The sizes of tensors and networks in a small file are checked before memory is used for them."""
    check_refused(limited, "policy", {name: make() for name, make in POLICIES.items()}, tmp_path, "ValueError")


@pytest.mark.parametrize("entry", ["data.pkl", "data/0"])
def test_compressed_policies_do_not_fill_the_memory(limited: LimitedCalls, tmp_path: Path, entry: str) -> None:
    """A file of half a megabyte that unpacks to 500 MB. `torch.save` does not compress."""
    files = {entry: inflated(policy_file(), entry, 500)}
    check_refused(limited, "policy", files, tmp_path, "ValueError")


LARGE = "*".join(["256**256"] * 9)  # Python does not convert it to text
NETWORKS: dict[str, str] = {
    "list as a key": "Linear({[1]: 2}, 3)",
    "large index": f"Linear((1, 2)[{LARGE}], 1)",
    "large key": f"Linear({{1: 2}}[{LARGE}], 1)",
    "large size": f"Linear(1, {LARGE})",
    "large number": f"Clip(0, {LARGE})",
    "many layers of one": f"GRU(1, 1, {LARGE})",
    "large quotient": f"Linear(1, {LARGE} / 2)",
    "complex": "Linear(1, (-2) ** 0.5)",
    "large float": "Linear(1, 256.0 ** 256.0)",
    "many factors": "Linear(1, " + "*".join(["256**256"] * 3000) + ")",
    "long chain": "Tanh() >> " * 20_000 + "Tanh()",
    "large linear": "Linear(10**6, 10**6)",
    "large linear on a device": "Linear(10**6, 10**6, device='cpu')",
    "large convolution": "Conv3d(1000, 1000, (100, 100, 100))",
    "large embedding": "Embedding(10**12, 10**12)",
    "large norm": "LayerNorm((10**5, 10**5))",
    "negative": "LSTM(-1, 3)",
    "many layers of several": " >> ".join(["Transformer(8, 1, 250, 250, 8)"] * 8),
    "function that loads": "RNN(4, 2, 'load')",
    "function that sets": "StructuredControlNet(4, 2, 1, 8, nonlinearity='set_num_threads')",
    "import": "__import__('mine')",
    "import as an argument": "Linear(__import__('mine'), 2)",
    "import in a text": "Linear(f'{__import__(\"mine\")}', 2)",
    "module of a device": "Linear(4, 2, device='mine')",
    "attribute": "Linear.__init__.__globals__",
    "attribute of a constant": "Linear(obs_length.__class__, 2)",
    "call of a call": "Tanh()()",
    "function of torch.nn": "register_module_forward_hook(1)",
    "open": "Linear(4, 2) >> open('marker', 'w')",
    "eval": 'eval(\'open("marker", "w")\')',
    "lambda": "(lambda: Tanh())()",
    "comprehension": "[Tanh() for i in (1,)]",
    "assignment": "Linear((x := 1), 2)",
    "await": "Linear(await x, 2)",
    "unpacking": "Sequential(*[Tanh()])",
    "choice": "Tanh() if 1 else Tanh()",
    "name with underscores": "__builtins__('mine')",
}


def test_hostile_networks_are_refused(limited: LimitedCalls) -> None:
    outcomes = dict(zip(NETWORKS, limited("network", NETWORKS.values()), strict=True))
    problems = [
        f"{name}: {outcome}"
        for name, outcome in outcomes.items()
        if excess(outcome) or outcome.error[:1] != ["NetParsingError"]
    ]
    assert not problems, "\n".join(["", *problems])
    assert not limited.marker.exists()

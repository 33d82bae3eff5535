"""Exact replacements after the moves: (new path, old text, new text). Refused loudly where the old text is not there."""

LAYERS = "tests/test_layers.py"
SNAP = "tests/snapshot/test_snapshot.py"
PATCHES = [
    # texts of tests that name classes of their fixtures
    ("tests/engine/test_pool_states.py", "The state of Hidden ", "The state of HiddenStateEnv "),
    ("tests/envs/batched/test_batched_env.py", ".*Tally.*num_workers comes", ".*CountingTensorDictEnv.*num_workers comes"),
    ("tests/classic/test_base.py", "Walk has no seeds", "WalkEnv has no seeds"),
    ("tests/faults/fixture_envs.py", '"Odd: odd 7', '"UnprintableError: odd 7'),
    ("tests/faults/fixture_envs.py", '"Locked: locked in"', '"UnpicklableError: locked in"'),
    ("tests/faults/fixture_envs.py", '"Mute (its text', '"SilentError (its text'),
    ("tests/faults/test_exceptions.py", "number 2: Odd", "number 2: UnprintableError"),
    ("src/vecrl/simulators/heterogeneous.py", '"Anything()"', '"AnySpace()"'),
    # layers: tables of paths
    (LAYERS, 'RAY_FILES = {f"engine/backends/{name}.py" for name in ("actors", "placing", "session")}',
     'RAY_FILES = {f"engine/backends/ray_cluster/{name}.py" for name in ("backend", "placement", "session")}'),
    (LAYERS, '_disallowed_imports("states", ', '_disallowed_imports("snapshot", '),
    (LAYERS, '"engine", "states", "simulators", "specs", "errors.py", "seeding.py", "stats.py"',
     '"engine", "snapshot", "simulators", "specs", "errors.py", "seeding.py", "running_stats.py"'),
    (LAYERS, 'if path.stem == "batched" else', 'if path.stem == "batch_pool" else'),
    ("Makefile", "src/vecrl/engine/backends/%.py,actors placing session", "src/vecrl/engine/backends/ray_cluster/%.py,backend placement session"),
    ("mkdocs.yml", "vecrl.checkpoint, states: api/states.md", "vecrl.checkpoint, snapshot: api/snapshot.md"),
    ("mkdocs.yml", "vecrl.errors, stats, seeding", "vecrl.errors, running_stats, seeding"),
    ("docs/api/snapshot.md", "vecrl.snapshot.take", "vecrl.snapshot.capture"),
    ("docs/api/snapshot.md", "vecrl.snapshot.put", "vecrl.snapshot.restore"),
    # code in strings
    ("tests/venv/test_base.py", "for card in envs._pool.cards])", "for card in envs._pool.worker_infos])"),
    # names of classes are in files: states and checkpoints have another version
    ("src/vecrl/snapshot/capture.py", "FORMAT = 1\n", "FORMAT = 2\n"),
    ("src/vecrl/snapshot/serialization.py", "VERSION = 1\n", "VERSION = 2\n"),
    ("tests/snapshot/test_serialization.py", "to be in version 1 of the format, but it is in version 9", "to be in version 2 of the format, but it is in version 9"),
    (SNAP, '"format": 2}', '"format": 1}'),
    (SNAP, "Expected a state in format 1, but one in format 2", "Expected a state in format 2, but one in format 1"),
    ("tests/snapshot/test_serialization.py", "def header(text):", '''def test_files_of_an_older_version_raise(tmp_path):
    raw = bytearray(whole([1]))
    raw[8:12] = struct.pack("<I", 1)
    path = tmp_path / "old.ckpt"
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"to be in version 2 .* in version 1: read it with the vecrl that wrote it"):
        checkpoint.load(path)


def header(text):'''),
    ("tests/snapshot/test_serialization.py", "from vecrl.errors import CheckpointError", "from vecrl import checkpoint\nfrom vecrl.errors import CheckpointError"),
    ("src/vecrl/snapshot/capture.py", "`not_state = {{{attribute!r}}}`", "`excluded_from_state = {{{attribute!r}}}`"),
    (SNAP, ".*not_state\"", ".*excluded_from_state\""),
    ("tests/benchmarks/test_workloads.py", '.parent / "contestants"', '.parent / "implementations"'),
    ("docs/architecture.md", "`states/`", "`snapshot/`"),
    ("docs/architecture.md", "`specs/conversions/`", "`specs/convert/`"),
    ("docs/architecture.md", "(`wiring`)", "(`entry_layout`)"),
    ("docs/architecture.md", "(`rows`)", "(`result_format`)"),
]
CREATE = {}

"""Reads data sets of labeled rows: scikit-learn's bundled sets, ARFF files, and the cache of the OpenML client.

Nothing is downloaded. This module knows no environments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from ..imports import import_library

BUNDLED = "iris", "digits", "wine", "breast_cancer"
ENCODINGS = "num", "onehot"
MAX_CLASSES = 1000
KNOWN = {  # short names of data sets of OpenML: name and version there
    "adult": ("adult", "1"),
    "mushroom": ("mushroom", "1"),
    "covertype": ("covertype", "3"),
    "shuttle": ("shuttle", "1"),
    "magic": ("MagicTelescope", "1"),
}
_INSTALL = 'pip install "vecrl[openml]"'


@dataclass(frozen=True, slots=True)
class DataSet:
    """Rows of numbers, each with a class.

    Attributes:
        features: `[rows, features]` float32.
        labels: `[rows]` int64, the class of each row.
        classes: the names of the classes.
    """

    features: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: numbers, or one of `categories` in each row. Missing values are None or NaN."""

    name: str
    values: Sequence[Any]
    categories: tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class CachedSet:
    """A data set in the cache of the OpenML client, with the entries of its description that are used here."""

    id: str
    folder: Path
    name: str
    version: str
    target: str | None
    ignored: tuple[str, ...]


def load(name: str, *, target: str | None = None, encoding: str | None = None) -> DataSet:
    """Loads a data set. Columns of numbers are scaled to a mean of 0 and a standard deviation of 1.

    Args:
        name: one of `BUNDLED`; a path that ends with ".arff"; or the id or the name of a data set in the cache of the
            OpenML client, after which "_num" or "_onehot" may give the encoding.
        target: the column with the classes; by default the one that the data set declares, or the last one.
        encoding: of columns with categories: "num", their indices as numbers, or "onehot", one feature for each
            category, which is the default.

    Raises:
        ImportError: a package is missing; the message says how to install it.
        FileNotFoundError: the file does not exist, or the data set is not in the cache.
        ValueError: the data cannot be read as rows with classes.

    >>> load("iris").features.shape  # doctest: +SKIP
    (150, 4)
    """
    if encoding not in (None, *ENCODINGS):
        raise ValueError(f"Expected encoding 'num' or 'onehot', got {encoding!r}.")
    if name in BUNDLED:
        features, labels, classes = _read_bundled(name)
        return DataSet(_scaled(features).astype(np.float32), labels.astype(np.int64), classes)
    if name.endswith(".arff"):
        return _to_data_set(_read_arff(Path(name)), target, encoding)
    short_name, _, suffix = name.rpartition("_")
    if suffix in ENCODINGS and short_name:
        name, encoding = short_name, encoding or suffix
    found = _find_cached(name)
    columns = [column for column in _read_cached(found) if column.name not in found.ignored]
    return _to_data_set(columns, target or found.target, encoding)


def available_names() -> list[str]:
    """Returns the names of the bundled data sets and of those in the cache of the OpenML client.

    Raises:
        ImportError: scikit-learn is missing.
    """
    _import("sklearn.datasets", "scikit-learn")
    try:
        cached_names = [cached.name for cached in cached_sets()]
    except ImportError:
        cached_names = []
    return [*BUNDLED, *dict.fromkeys(cached_names)]


def cached_sets() -> list[CachedSet]:
    """Returns the data sets in the cache of the OpenML client, in the order of their ids.

    Raises:
        ImportError: the client is missing.
    """
    folder = Path(_import("openml", "openml").config.get_cache_directory()) / "datasets"
    ids = [path.name for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
    folders = [folder / data_id for data_id in sorted(ids, key=int)]
    return [_read_description(path) for path in folders if (path / "description.xml").is_file()]


def _import(module: str, package: str) -> Any:
    return import_library(module, f"{package} is not installed: {_INSTALL}")


def _read_description(folder: Path) -> CachedSet:
    root = ElementTree.parse(folder / "description.xml").getroot()
    ignored = [
        element.text or "" for tag in ("ignore_attribute", "row_id_attribute") for element in root.iter(_ns(tag))
    ]
    names = [name.strip() for text in ignored for name in text.split(",")]
    name, version = root.findtext(_ns("name")) or folder.name, root.findtext(_ns("version")) or "1"
    return CachedSet(folder.name, folder, name, version, root.findtext(_ns("default_target_attribute")), tuple(names))


def _ns(tag: str) -> str:
    return "{http://openml.org/openml}" + tag


def _find_cached(name: str) -> CachedSet:
    """Returns the data set with this id or name; of several versions, the newest."""
    known_name, version = KNOWN.get(name, (name, None))
    found = [
        cached
        for cached in cached_sets()
        if cached.id == name or (cached.name.lower() == known_name.lower() and version in (None, cached.version))
    ]
    if not found:
        arguments = f"{name if name.isdigit() else repr(known_name)}" + (f", version={version}" if version else "")
        raise FileNotFoundError(
            f"Expected one of {', '.join(BUNDLED)}, a path that ends with '.arff', or a data set in the cache of the "
            f"OpenML client, got {name!r}. Nothing is downloaded here: "
            f"openml.datasets.get_dataset({arguments}) puts it into the cache."
        )
    return max(found, key=lambda cached: int(cached.version))


def _read_cached(cached: CachedSet) -> list[Column]:
    arff_files, parquet_files = (sorted(cached.folder.glob(f"dataset*.{suffix}")) for suffix in ("arff", "pq"))
    if not arff_files and not parquet_files:
        raise FileNotFoundError(
            f"Expected a file dataset*.arff or dataset*.pq in {cached.folder}, got a description only. "
            f"openml.datasets.get_dataset({cached.id}, download_data=True) puts the data into the cache."
        )
    return _read_arff(arff_files[0]) if arff_files else _read_parquet(parquet_files[0])


def _read_bundled(name: str) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    bunch = getattr(_import("sklearn.datasets", "scikit-learn"), f"load_{name}")()
    return bunch.data, bunch.target, tuple(str(label) for label in bunch.target_names)


def _read_arff(path: Path) -> list[Column]:
    arff = _import("arff", "liac-arff, which the OpenML client needs,")
    with path.open() as file:
        content = arff.load(file)
    columns = zip(*content["data"], strict=True) if content["data"] else [()] * len(content["attributes"])
    found: list[Column] = []
    for (name, kind), values in zip(content["attributes"], columns, strict=True):
        if kind == "STRING":
            raise ValueError(f"Expected numbers or categories in {path}, got the text column {name!r}. Remove it.")
        found.append(Column(name, values, tuple(kind) if isinstance(kind, list) else None))
    return found


def _read_parquet(path: Path) -> list[Column]:
    table = _import("pandas", "pandas, which the OpenML client needs,").read_parquet(path)
    found: list[Column] = []
    for name in table.columns:
        values = table[name]
        is_nominal = values.dtype.kind not in "iufb"
        categories = tuple(sorted(values.dropna().unique().tolist())) if is_nominal else None
        found.append(Column(str(name), [None if value != value else value for value in values.tolist()], categories))
    return found


def _to_data_set(columns: list[Column], target: str | None, encoding: str | None) -> DataSet:
    names = [column.name for column in columns]
    target = target or names[-1]
    if target not in names:
        raise ValueError(f"Expected a target among the columns {', '.join(names)}, got {target!r}.")
    labels, classes = _read_labels(columns[names.index(target)])
    features = np.concatenate([_encode(column, encoding) for column in columns if column.name != target], axis=1)
    complete = ~np.isnan(features).any(1) & (labels >= 0)  # rows with a missing number or class are not used
    if not complete.any():
        raise ValueError(f"Expected at least one row without missing values, got none of {len(labels)}.")
    return DataSet(features[complete].astype(np.float32), labels[complete], classes)


def _read_labels(column: Column) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns the class of each row, -1 if it is missing, and the names of the classes."""
    categories = _whole_numbers(column) if column.categories is None else column.categories
    codes = {category: code for code, category in enumerate(categories)}
    return np.array([codes.get(value, -1) for value in column.values], np.int64), tuple(map(str, codes))


def _whole_numbers(column: Column) -> list[int]:
    numbers = np.array(column.values, np.float64)  # missing numbers become NaN
    found = np.unique(numbers[~np.isnan(numbers)])
    if len(found) > MAX_CLASSES or (found % 1).any():
        raise ValueError(
            f"Expected at most {MAX_CLASSES} classes in the column {column.name!r}, got numbers with {len(found)} "
            "values. Give another target."
        )
    return found.astype(int).tolist()


def _encode(column: Column, encoding: str | None) -> np.ndarray:
    """Returns the features `[rows, k]` of a column. A missing category is a category of its own."""
    if column.categories is None:
        return _scaled(np.array(column.values, np.float64)[:, None])
    codes = {category: code for code, category in enumerate(column.categories)}
    indices = np.array([codes.get(value, len(codes)) for value in column.values])
    if encoding == "num":
        return _scaled(indices[:, None].astype(np.float64))
    width = max(len(codes), 1 + int(indices.max(initial=0)))
    return np.eye(width)[indices]


def _scaled(values: np.ndarray) -> np.ndarray:
    """Scales each column to a mean of 0 and a standard deviation of 1; a constant column to zeros."""
    deviation = np.nanstd(values, axis=0)
    return (values - np.nanmean(values, axis=0)) / np.where(deviation > 0, deviation, 1)

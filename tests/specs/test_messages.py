"""Error messages about invalid arguments of specs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from vecrl.errors import SpaceError
from vecrl.specs import Bounded, Composite, MultiCategorical, MultiOneHot, OneHot, Unbounded
from vecrl.specs.domains import Domain

ERROR_CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "sizes side by side": (lambda: Unbounded(2, 3), SpaceError, "A shape of several dimensions is a tuple"),
    "half a size": (lambda: Unbounded(3.5), SpaceError, "Expected a shape: .* got 3.5"),
    "half a size among others": (lambda: Unbounded((2, 3.5)), SpaceError, r"Expected a shape: .*\(2, 3.5\)"),
    "words for sizes": (lambda: Unbounded("ab"), SpaceError, "Expected a shape: .* got 'ab'"),
    "a size of -2": (lambda: Bounded(0, 1, (-2,)), SpaceError, r"-1 for a dynamic size.*\(-2,\)"),
    "words for bounds": (lambda: Bounded("a", 1, (3,)), SpaceError, "numbers as bounds, got 'a'"),
    "words for counts": (lambda: MultiOneHot("ab"), SpaceError, "number of options for each choice, got 'ab'"),  # pyright: ignore[reportArgumentType]
    "words for more counts": (lambda: MultiCategorical("ab"), SpaceError, "for each choice, got 'ab'"),  # pyright: ignore[reportArgumentType]
    "words for an index": (lambda: Unbounded((2,))["a"], IndexError, "Expected integers, slices.*'a'"),
    "an open batch": (lambda: Unbounded((2,)).rand((-1,)), SpaceError, r"got \(-1,\). Give all sizes"),
    "a list of specs": (lambda: Composite([("a", Unbounded(3))]), SpaceError, "Expected a mapping"),  # pyright: ignore[reportArgumentType]
    "a part of a choice": (lambda: OneHot(4)[0], IndexError, "last dimension of OneHot.* is one choice"),
    "a choice reshaped": (lambda: OneHot(4).reshape(2, 2), SpaceError, "last dimension is one choice"),
    "too narrow": (lambda: Unbounded((4, 2)).expand(3), SpaceError, r"expand .* \(4, 2\) with .*\(3,\).* not fit"),
    "too few": (lambda: Unbounded((4, 2)).reshape(3), SpaceError, r"reshape .* \(4, 2\) with .*\(3,\).* not fit"),
    "no factors": (lambda: Unbounded((4, 2)).unflatten(0, (3, 2)), SpaceError, "unflatten .* do not fit"),
    "a two in one row": (lambda: OneHot(2).to_numpy(torch.tensor([[0, 2], [0, 1]])), SpaceError, "of 2 options"),
    "no row": (lambda: OneHot(3).to_numpy(torch.zeros(3)), SpaceError, "one-hot rows of 3 options"),
    "one of two rows": (lambda: OneHot(3).to_numpy(torch.eye(3)[:2] * torch.tensor([[1], [0]])), SpaceError, "one-hot"),
    "no subclass of Domain": (lambda: Domain(), TypeError, "abstract.*rand.*violation"),  # pyright: ignore[reportAbstractUsage]
    "a wider row": (lambda: OneHot(3).to_numpy(torch.eye(5)[4]), SpaceError, r"of 3 options.*\(5,\)"),
}


@pytest.mark.parametrize("case", ERROR_CASES)
def test_error_messages(case: str) -> None:
    call, kind, message = ERROR_CASES[case]
    with pytest.raises(kind, match=f"(?s){message}"):
        call()

"""Values: what they share with frozen, slotted dataclasses."""

from __future__ import annotations

import copy
import pickle
from typing import ClassVar

import pytest

from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.requests import LoadedRows, LoadItems
from threadkeep.plan import READ, Reply
from threadkeep.value import Value, field


class Point(Value):
    """A value with a default of each kind."""

    unit: ClassVar[str] = "cm"
    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.x + self.y


class OtherPoint(Value):
    """A value with the same fields."""

    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list)


class NamedPoint(Point):
    """A value with a field more than its base."""

    name: str = ""


def test_fields_are_given_by_position_by_name_or_by_default() -> None:
    assert (Point(1).x, Point(1).y, Point(1, 2).y, Point(y=3, x=4).total) == (1, 0, 2, 7)
    assert Point.unit == "cm"
    assert NamedPoint(1, name="a").name == "a"


def test_a_default_that_can_change_is_made_for_each_object() -> None:
    assert Point(1).tags is not Point(1).tags
    assert LoadedRows(None).items is not LoadedRows(None).items


@pytest.mark.parametrize(
    ("given", "named"),
    [((), {}), ((1, 2, [], 4), {}), ((1,), {"x": 2}), ((1,), {"z": 2}), ((1, 2, []), {"y": 2}), ((1, 2, []), {"z": 2})],
)
def test_a_missing_unknown_or_repeated_field_is_refused(given: tuple[object, ...], named: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        Point(*given, **named)  # type: ignore[arg-type]


def test_values_are_equal_if_class_and_fields_are() -> None:
    assert Point(1, 2) == Point(1, 2)
    assert Point(1, 2) != Point(1, 3)
    assert Point(1, 2) != OtherPoint(1, 2)
    assert Point(1, 2) != (1, 2, [])
    assert len({LoadItems(ThreadKey("", "graph", "t"), ()) for _ in range(2)}) == 1


def test_a_value_cannot_be_changed_and_has_no_other_attributes() -> None:
    point = Point(1)
    with pytest.raises(AttributeError, match="immutable"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match="immutable"):
        del point.x
    with pytest.raises(AttributeError):
        point.z = 2
    assert not hasattr(point, "__dict__")


def test_a_value_with_other_fields_is_a_new_one() -> None:
    point = Point(1, 2, ["a"])
    assert point._replace(y=3) == Point(1, 3, ["a"])
    assert point == Point(1, 2, ["a"])
    with pytest.raises(TypeError):
        point._replace(z=3)


def test_a_value_is_printed_copied_and_pickled() -> None:
    assert repr(Point(1, 2, ["a"])) == "Point(x=1, y=2, tags=['a'])"
    assert copy.deepcopy(Point(1, 2, ["a"])) == Point(1, 2, ["a"])
    assert pickle.loads(pickle.dumps(Reply(READ))) == Reply(READ)  # noqa: S301 - our own

"""Pickles that are written by hand are read by Python as what they say."""

import io
import pickle
from typing import Any

import pytest

from mindllm.formats.pickles import Call, Global, Instance, Persistent, dumps

PLAIN = [
    None,
    True,
    False,
    0,
    -1,
    255,
    256,
    2**40,
    -(2**70),
    1.5,
    "",
    "größer",
    (),
    (1,),
    [],
    [1, [2]],
    {},
    {"a": (1, 2)},
]


class Thing:
    """Something with a state."""

    state: Any = None


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_come_back(value: Any) -> None:
    loaded = pickle.loads(dumps(value))
    assert loaded == value and type(loaded) is type(value)


def test_globals_calls_and_instances_are_made_by_the_reader() -> None:
    pair = Call(Global("builtins", "complex"), (1, 2))
    assert pickle.loads(dumps([pair, Global("builtins", "complex"), pair])) == [1 + 2j, complex, 1 + 2j]
    (thing,) = pickle.loads(dumps([Instance(Global(__name__, "Thing"), {"state": [pair]})]))
    assert type(thing) is Thing and thing.state == [1 + 2j]


def test_what_lies_outside_is_asked_for() -> None:
    class Reader(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> Any:
            return ["found", pid]

    assert Reader(io.BytesIO(dumps({"a": Persistent(("storage", 3))}))).load() == {"a": ["found", ("storage", 3)]}


def test_other_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="a set cannot be written"):
        dumps([{1}])

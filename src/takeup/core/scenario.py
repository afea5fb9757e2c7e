"""Scenario files: one TOML file describes a run, with units in the keys, and is checked before anything starts."""

import json
import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from takeup.errors import BadScenario

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")

_PLAIN_WORDS = {
    "Input should be ": "",
    "Value error, ": "",
    "Assertion failed, ": "",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "text",
    "a valid tuple": "a list",
    "a valid list": "a list",
    "a valid boolean": "true or false",
}


class Scenario(BaseModel):
    """The keys of every scenario; the scenario of a domain adds its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    domain: str
    verb: str
    seed: int = 1


M = TypeVar("M", bound=Scenario)


def load_scenario(path: Path) -> dict[str, Any]:
    """The keys and values of a TOML file, not yet checked."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a byte order mark
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadScenario(f"cannot read scenario {path}: {reason}; give the path of a .toml file") from error
    except UnicodeDecodeError as error:
        raise BadScenario(f"{path}: this is not a text file; give the path of a .toml file") from error
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        problem = str(error).replace("end of document", f"line {len(text.splitlines())}, the end of the file")
        raise BadScenario(f"{path}: this is not TOML: {problem}; write one 'key = value' per line") from error


def validate(model: type[M], values: Mapping[str, Any], source: str) -> M:
    """The scenario of type `model` that `values` describe; `source` names the file or option in an error."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        problems = error.errors(include_url=False)
    # An unknown key comes first: it is often the misspelling of a key that is also reported as missing.
    first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    raise BadScenario(f"{source}: {_sentence(model, first)}")


def to_toml(scenario: Scenario) -> str:
    """A scenario as TOML text that `load_scenario` and `validate` turn back into an equal one."""
    values = scenario.model_dump(mode="json", exclude_none=True)  # TOML has no null: an absent key means the default
    return "".join(f"{_key_text(key)} = {_value_text(value, key)}\n" for key, value in values.items())


def _sentence(model: type[BaseModel], problem: ErrorDetails) -> str:
    key = ".".join(map(str, problem["loc"]))
    match problem["type"]:
        case "missing":
            return f"the key {key!r} is missing; add a line '{key} = ...'"
        case "extra_forbidden":
            return f"there is no key {key!r}{_suggestion(key, model)} (known: {', '.join(model.model_fields)})"
        case "value_error" | "assertion_error":  # from a model's own validator, which writes a whole sentence
            found = f"{key!r} is {_shown(problem['input'])}: " if key else ""
            return found + _message(problem)
    return f"{key!r} is {_shown(problem['input'])}, expected {_message(problem)}"


def _message(problem: ErrorDetails) -> str:
    """What pydantic says it wanted, as the end of our sentence."""
    message = problem["msg"].partition("\n")[0]
    for technical, plain in _PLAIN_WORDS.items():
        message = message.replace(technical, plain)
    return message


def _suggestion(key: str, model: type[BaseModel]) -> str:
    """The known key that differs only by its unit, or else the nearest in spelling."""
    known = list(model.model_fields)
    same_but_unit = [name for name in known if name.startswith(f"{key}_") or key.startswith(f"{name}_")]
    near = same_but_unit or get_close_matches(key, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _shown(value: object) -> str:
    text = ", ".join(map(repr, value)) if isinstance(value, tuple) and value else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _key_text(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string_text(key)


def _value_text(value: object, key: str) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _string_text(value)
        case list() | tuple():
            return f"[{', '.join(_value_text(item, key) for item in value)}]"
    raise BadScenario(
        f"{key!r} is {_shown(value)}, which a scenario file cannot hold; use text, numbers or lists of them"
    )


def _string_text(text: str) -> str:
    """A basic TOML string: JSON's escapes are TOML's, except that TOML also escapes DEL and has no surrogate pairs."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

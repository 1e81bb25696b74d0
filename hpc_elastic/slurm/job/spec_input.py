"""Reading the raw values of a job spec, with errors that name the fault. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.job import options
from hpc_elastic.slurm.job.values import (
    BadValueError,
    number_text,
    parse_duration_s,
    parse_memory,
    parse_nodes,
    parse_size,
    parse_time_limit_s,
    shown,
    slurm_time_text,
    text_of,
)

if TYPE_CHECKING:
    from pydantic import ValidationError


def no_switch(value: object) -> object:
    """Refuse true and false, which are numbers in Python."""
    if isinstance(value, bool):
        raise BadValueError(f"{value!r} is not a whole number", "write a number, e.g. 4")
    return value


def one_line(value: object) -> object:
    """Accept text without line breaks; numbers become text."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = _number(value)
    if isinstance(value, str) and options.has_control(value):
        raise BadValueError(f"{value!r} holds a line break or control character", "remove it")
    return _no_nul([value])[0] if isinstance(value, str) else value


def _no_nul(texts: Sequence[str]) -> tuple[str, ...]:
    for text in texts:
        if "\0" in text:
            raise BadValueError(f"{text!r} holds a NUL character, which no program can be given", "remove it")
        try:
            text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise BadValueError(
                f"{text!r} holds a character that is not valid Unicode", "remove it"
            ) from None
    return tuple(texts)


def _texts(value: Sequence[object]) -> tuple[str, ...]:
    if not all(isinstance(item, (str, int, float)) and not isinstance(item, bool) for item in value):
        raise BadValueError(f"{value!r} is not a list of words", "quote each word")
    return _no_nul([item if isinstance(item, str) else _number(item) for item in value])


def _number(value: object) -> str:
    """Return a number as text."""
    text = text_of(value)
    if not text:
        raise BadValueError(f"{shown(value)} is too long", "write it in quotes if it is no number")
    return text


def words(value: object) -> object:
    """Read a command: a list of words, or one string that is split as a shell would."""
    if isinstance(value, str):
        try:
            found = shlex.split(value)
        except ValueError as error:
            raise BadValueError(
                f"{value!r} is not a command: {error}", "close the quotes, or write a list"
            ) from None
        return _no_nul(found)
    return _texts(value) if isinstance(value, (list, tuple)) else value


def lines(value: object) -> object:
    """Read shell lines: a list of lines, or one text."""
    if isinstance(value, str):
        return _no_nul(value.splitlines())
    return _texts(value) if isinstance(value, (list, tuple)) else value


def names(value: object) -> object:
    """Read names: a list, or text; blanks or commas separate names, also in a text of a list."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)):
        return value
    return tuple(name for text in _texts(texts) for name in text.replace(",", " ").split())


def seconds(value: object) -> object:
    """Read a duration [s]."""
    return parse_duration_s(value)


def interval(value: object) -> object:
    """Read a duration [s] that is more than nothing.

    The agents would refuse it, on nodes that the job has waited for.
    """
    read = parse_duration_s(value)
    if not read > 0:
        raise BadValueError(f"{shown(value)} leaves no time", "write more than 0")
    return read


def size(value: object) -> object:
    """Check a size and keep it as it was written."""
    if value is not None:
        parse_size(value)
    return None if value is None else str(value).strip()  # a number from a file has few digits


def memory(value: object) -> object:
    """Check an amount of memory and keep it as it was written."""
    return None if value is None else parse_memory(value)


def silence(value: object) -> object:
    """Read how long workers may make no progress: a duration, ``auto`` or ``off``."""
    word = str(value).strip().lower()
    if value is None or word in ("auto", "off"):
        return None if value is None else word
    fix = "write a time (90s, 10m, 1h30m), auto or off"
    try:
        seconds = parse_duration_s(value)
    except BadValueError:
        raise BadValueError(f"{value!r} is neither a duration nor auto or off", fix) from None
    if not seconds > 0:
        raise BadValueError(f"{value!r} leaves no time", fix)
    return number_text(seconds)


def unasked(value: object) -> object:
    """Accept the fate of workers that never ask: ``term``, ``run-on`` or ``signal:NAME``."""
    if value is None or re.fullmatch("term|run-on|signal:(SIG)?[A-Z][A-Z0-9]{1,9}", str(value)):
        return value
    what = f"{shown(value)} says nothing about workers that never ask"
    raise BadValueError(what, "write term, run-on or signal:USR1")


def time_limit(value: object) -> object:
    """Read a time limit and keep it as Slurm writes it."""
    return None if value is None else slurm_time_text(parse_time_limit_s(value))


def nodes(value: object) -> object:
    """Read a node count or range and keep it as ``N`` or ``MIN:MAX``."""
    return str(parse_nodes(value))


def gpus(value: object) -> object:
    """Accept ``N`` or ``TYPE:N``."""
    is_count = re.fullmatch(r"([\w.-]+:)?[0-9]{1,6}", text_of(value)) is not None
    if value is not None and not is_count:
        raise BadValueError(f"{shown(value)} is not a number of GPUs", "write N or TYPE:N, e.g. 8 or a100:8")
    return value


def variables(value: object) -> object:
    """Read environment variables; numbers become text, booleans are refused as ambiguous."""
    if not isinstance(value, Mapping):
        return value
    read: dict[object, object] = {}
    for name, text in value.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise BadValueError(
                f"{name!r} is not the name of an environment variable", "use letters, digits and _"
            )
        if isinstance(text, bool) or not isinstance(text, (str, int, float)):
            raise BadValueError(f"the value {text!r} of {name} is not text", f'write {name} = "..."')
        read[name] = _no_nul([text if isinstance(text, str) else _number(text)])[0]
    return read


def fold_sbatch(data: object) -> object:
    """Move sbatch options that have a field of their own into that field.

    Raises:
        InputError: an option was given both ways, is owned by the protocol, or has a wrong value.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("sbatch"), Mapping):
        return data
    folded = dict(data)
    rest: dict[str, object] = {}
    for key, value in data["sbatch"].items():
        name = options.option_name(str(key))
        field = options.FIELDS.get(name)
        options.check_owned([name])
        if name in rest:
            raise InputError(
                f"--{name} is given twice in sbatch", where=f"sbatch.{key}", fix="keep one of them"
            )
        if name == "exclusive" and not isinstance(value, bool):
            field = None  # --exclusive=user has no field
        if field is None:
            if isinstance(value, (str, int, float)):
                options.check_value(name, value)
            rest[name] = value
            continue
        if field in data:
            raise InputError(
                f"--{name} is given twice: {field} = {data[field]!r} and sbatch {key} = {value!r}",
                where=f"sbatch.{key}",
                fix=f"keep {field}",
            )
        folded[field] = value
    folded["sbatch"] = rest
    return folded


def explain(error: ValidationError, fields: Sequence[str]) -> InputError:
    """Return the first problem of a spec as an error that names thing, value, place and fix."""
    problem = error.errors()[0]
    place = ".".join(str(part) for part in problem["loc"][:2] if not _is_type_tag(part))
    cause = problem.get("ctx", {}).get("error")
    if problem["type"] == "extra_forbidden":
        if isinstance(problem["input"], Mapping):
            return InputError(
                f"there is no table [{place}]",
                where=place,
                fix=f"settings stand at the top level, without [{place}]",
            )
        known = [*fields, *options.FIELDS, *options.BUILT_IN]
        same = [name for name in fields if name == place.replace("-", "_")]
        fix = options.near(place, same) or _sbatch_hint(place)
        fix = fix or options.near(place, fields) or options.near(place, known)
        return InputError(
            f"there is no setting '{place}'", where=place, fix=fix or "see hpc-elastic submit --help"
        )
    if isinstance(cause, BadValueError):
        return InputError(f"{place} = {cause.message}", where=place, fix=cause.fix)
    words, fix = _plain(problem["type"], place, problem.get("ctx", {}))
    message = f"{place} = {shown(problem['input'])} {words or problem['msg']}"
    return InputError(message, where=place, fix=fix or "see hpc-elastic submit --help")


def _plain(kind: str, place: str, limits: Mapping[str, object]) -> tuple[str, str]:
    """Return the fault of a value of a wrong type and an example; nothing for a type not foreseen."""
    least = limits.get("ge")
    table = {
        "int": ("is not a whole number", f"write a number without quotes or units, e.g. {place} = 4"),
        "less": (f"is more than {limits.get('le')}", f"write {limits.get('le')} or less"),
        "greater": (f"is less than {least}", f"write {least} or more"),
        "tuple": ("is neither text nor a list of words", f'write a list, e.g. {place} = ["one", "two"]'),
        "string": ("is not text", f'write it in quotes, e.g. {place} = "text"'),
        "bool": ("is neither true nor false", f"write {place} = true"),
        "literal": ("cannot be used", f"write {limits.get('expected')}"),
        "dict": ("is not a table", f'write {place} = {{ NAME = "value" }}'),
    }
    return table.get(kind.partition("_")[0], ("", ""))


def _is_type_tag(part: object) -> bool:
    """Whether pydantic added this part of a location for a member of a union."""
    return part in ("str", "int", "float", "bool")


def _sbatch_hint(key: str) -> str:
    name = options.option_name(key)
    if name in options.OWNED:
        why, instead = options.OWNED[name]
        return f"the sbatch option --{name} cannot be given ({why}); {instead}"
    if name in options.FIELDS:
        return f"write {options.FIELDS[name]}"
    return (
        f"write it in the table sbatch: sbatch = {{ {name} = ... }} (-o {name}=...)"
        if name in options.BUILT_IN
        else ""
    )

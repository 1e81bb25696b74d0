"""The job spec: one description of a run, the same from the command line, TOML and Python.

Its fields are the rows of `hpc_elastic.settings.table`; here is how pydantic reads the values of each kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

from hpc_elastic.settings import setting as kinds
from hpc_elastic.settings.setting import Setting, ValueKind
from hpc_elastic.settings.table import JOB, JobSettings
from hpc_elastic.slurm.job import options, spec_input, spec_rules
from hpc_elastic.slurm.job.values import (
    NodeRange,
    parse_nodes,
    parse_time_limit_s,
    slurm_time_text,
)

OptionValue = str | int | float | bool  # in this order: pydantic keeps the type that was given
_TYPES: dict[ValueKind[Any], Any] = {
    kinds.TEXT: Annotated[str, BeforeValidator(spec_input.one_line)],
    kinds.PATH: Annotated[str, BeforeValidator(spec_input.one_line)],
    kinds.SWITCH: bool,
    kinds.BUDGET: Annotated[int, Field(ge=0, le=kinds.MOST)],
    kinds.COUNT: Annotated[int, Field(ge=1, le=kinds.MOST)],
    kinds.SECONDS: Annotated[float, BeforeValidator(spec_input.seconds)],
    kinds.INTERVAL: Annotated[float, BeforeValidator(spec_input.interval)],
    kinds.SILENCE: Annotated[str | int | float, BeforeValidator(spec_input.silence)],
    kinds.TIME_LIMIT: Annotated[str | int, BeforeValidator(spec_input.time_limit)],
    kinds.NODES: Annotated[str | int, BeforeValidator(spec_input.nodes)],
    kinds.GPUS: Annotated[str | int, BeforeValidator(spec_input.gpus)],
    kinds.MEMORY: Annotated[str, BeforeValidator(spec_input.memory)],
    kinds.SIZE: Annotated[str, BeforeValidator(spec_input.size)],
    kinds.UNASKED: Annotated[str, BeforeValidator(spec_input.unasked)],
    kinds.WORDS: Annotated[tuple[str, ...], BeforeValidator(spec_input.words)],
    kinds.LINES: Annotated[tuple[str, ...], BeforeValidator(spec_input.lines)],
    kinds.NAMES: Annotated[tuple[str, ...], BeforeValidator(spec_input.names)],
    kinds.SIGNALS: Annotated[tuple[str, ...], BeforeValidator(spec_input.names)],
    kinds.OPTIONS: dict[str, OptionValue],
    kinds.VARIABLES: Annotated[dict[str, str], BeforeValidator(spec_input.variables)],
}


def _field(row: Setting) -> tuple[Any, Any]:
    """Return type and default of a field."""
    of_kind = Literal[row.kind.choices] if row.kind.choices else _TYPES[row.kind]
    default = row.default.copy() if isinstance(row.default, dict) else row.default
    return (of_kind | None if default is None else of_kind), Field(default, description=row.help)


if TYPE_CHECKING:

    class _Fields(JobSettings, BaseModel): ...
else:
    _Fields = BaseModel


class _Rules(_Fields):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, data: object, build: Callable[[object], JobSpec]) -> JobSpec:
        try:
            spec = build(spec_input.fold_sbatch(data))
        except ValidationError as error:
            raise spec_input.explain(error, tuple(cls.model_fields)) from None
        spec_rules.check(spec)
        return spec

    @property
    def node_range(self) -> NodeRange:
        """The least and the most nodes of the run."""
        return parse_nodes(self.nodes)

    @property
    def tasks(self) -> int:
        """How many tasks the array of the run has in array mode."""
        return self.node_range.high + (self.spares or 0)

    @property
    def time_limit_s(self) -> int | None:
        """The time limit [s]; None if there is none or the partition decides."""
        return None if self.time is None else parse_time_limit_s(self.time)

    @property
    def cpus(self) -> int | None:
        """The CPUs on each node, None if not asked for."""
        return self.cpus_per_node or self.cpus_per_task

    @property
    def gpus(self) -> int | None:
        """The GPUs on each node, None if not asked for by `gpus_per_node`."""
        return None if self.gpus_per_node is None else int(str(self.gpus_per_node).rpartition(":")[2])

    def header_options(self) -> list[tuple[str, OptionValue]]:
        """Return the sbatch options the user asked for, named fields first, in a fixed order."""
        otherwise: dict[str, OptionValue | None] = {
            "name": self.name or None,
            "time": None if self.time is None else slurm_time_text(self.time_limit_s),
            "nodes": "1" if self.mode == "array" else self.node_range.slurm_text,
            "cpus_per_task": self.cpus,
            "exclusive": True if self.exclusive else None,
            "workdir": None,  # an absolute path, which the script's names tell
            "comment": None,  # with the submission's token
        }
        named = {
            option: otherwise[name] if name in otherwise else getattr(self, name)
            for option, name in options.FIELDS.items()
        }
        given: list[tuple[str, OptionValue]] = []
        given += [(name, value) for name, value in named.items() if value is not None]
        return given + [(name, value) for name, value in self.sbatch.items() if value is not False]

    def option_names(self) -> tuple[str, ...]:
        """Return the long names of the options given in `sbatch`."""
        return tuple(options.option_name(name) for name in self.sbatch)


if TYPE_CHECKING:

    class JobSpec(_Rules):
        """What to run and what to run it on; at run time made below."""

        def __init__(self, **fields: Any) -> None: ...
else:
    JobSpec = create_model(
        "JobSpec",
        __base__=_Rules,
        __module__=__name__,
        __doc__="""What to run and what to run it on.

    Durations are seconds or text with a unit (``90s``, ``2m``); `time` is minutes or text, as in Slurm.

    Raises:
        InputError: a field is unknown, cannot be read, or contradicts another one; `where` is its name.
    """,
        **{name: _field(row) for name, row in JOB.items()},
    )

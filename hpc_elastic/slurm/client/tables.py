"""Tables that squeue and sinfo print, with a mark behind each cell that nobody can have written before. Pure.

A job's name, comment, constraint and paths are any text, and so are the reasons that administrators give:
they may hold blanks, newlines, separators, and words that look like a field. So each question makes up a
mark at random, and Slurm prints it behind each cell. Whoever wrote a text before cannot know it.
"""

from __future__ import annotations

from typing import NamedTuple

from hpc_elastic.errors import SlurmCommandError


class UnclearAnswerError(SlurmCommandError):
    """A Slurm command has printed something that cannot be read for sure.

    Args:
        argv: the command.
        why: what is wrong with its output.
        fix: what to do.
    """

    def __init__(self, argv: tuple[str, ...], why: str, fix: str = "") -> None:
        super().__init__(argv, 0, why)
        self.fix = (
            fix or f"compare with what {argv[0]} prints here; a site may have put a program in its place"
        )

    def __str__(self) -> str:
        return f"what {argv_text(self.argv)} tells cannot be read for sure: {self.stderr}\n  fix: {self.fix}"


def argv_text(argv: tuple[str, ...]) -> str:
    """Return the first words of a command, without its options."""
    return " ".join(word for word in argv[:3] if not word.startswith("-"))


class Form(NamedTuple):
    """The columns of a table.

    Attributes:
        columns: letters of ``--format``, or names of ``--Format``. The first one holds no free text.
        is_long: whether they are names.
    """

    columns: tuple[str, ...]
    is_long: bool = False

    def option(self, mark: str) -> str:
        """Return the option that asks for this table; no column is cut off."""
        if self.is_long:
            return "--Format=" + ",".join(f"{name}:0{mark}" for name in self.columns)
        return "--format=" + "".join(f"%{letter}{mark}" for letter in self.columns)

    def rows(self, text: str, mark: str, argv: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return the cells of each row of the table.

        Lines between the rows, such as the name of a cluster, are left out.

        Args:
            text: what was printed.
            mark: that of this question.
            argv: the command, for the error.

        Raises:
            UnclearAnswerError: cells are missing.
        """
        *cells, _behind = text.split(mark)
        width = len(self.columns)
        if len(cells) % width:
            raise UnclearAnswerError(argv, f"{len(cells)} cells in rows of {width}")
        rows = (cells[start : start + width] for start in range(0, len(cells), width))
        return [(first.rpartition("\n")[2], *others) for first, *others in rows]


def plain_environment(environ: dict[str, str]) -> dict[str, str]:
    """Return the environment for questions: a user's own settings of these commands change no answer.

    Filters (``SQUEUE_PARTITION``) would hide jobs, and other formats of dates could not be read.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(("SQUEUE_", "SINFO_", "SCONTROL_"))
    }
    return {**kept, "SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0"}

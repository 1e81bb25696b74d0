"""Metrics in files: JSON lines and CSV, one file per process.

A metric that cannot be written (full disk, directory gone) is dropped and the first such error is
logged: training does not end for want of a metric.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import os
from abc import abstractmethod
from typing import Any

from hpc_elastic.line_file import LineFile
from hpc_elastic.metrics.api import MetricData, MetricHandler

logger = logging.getLogger(__name__)


def plain_number(value: Any) -> Any:
    """Return an int or float for a number of any library (NumPy, a tensor of one element)."""
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    return value.item() if hasattr(value, "item") else float(value)


class _LinesHandler(MetricHandler):
    """Writes a line per value."""

    def __init__(self, file: LineFile) -> None:
        self._file = file
        self._warned = False

    @property
    def path(self) -> str:
        """The file of this process."""
        return self._file.path

    @abstractmethod
    def _line(self, metric_data: MetricData) -> str:
        """Return a value as a line."""

    def open(self) -> None:
        """Make the file now.

        Raises:
            OSError: it cannot be made.
        """
        self._file.open()

    def emit(self, metric_data: MetricData) -> None:
        """Write one value."""
        line = self._line(metric_data)
        try:
            self._file.write_line(line)
        except OSError as error:
            if not self._warned:
                logger.warning("Metrics that cannot be written to %s are dropped: %s", self.path, error)
            self._warned = True

    def close(self) -> None:
        """Close the file; a later value opens it again."""
        self._file.close()


class JsonLinesMetricHandler(_LinesHandler):
    """Writes ``{"timestamp": s, "group": …, "name": …, "value": …}``, one line per value.

    A value that is not finite is written as null.

    Args:
        directory: gets ``metrics-<host>-<pid>.jsonl``; made if it is missing, its parent is not.
        stem: first part of the file name.
    """

    def __init__(self, directory: str | os.PathLike[str], stem: str = "metrics") -> None:
        super().__init__(LineFile(directory, stem, ".jsonl"))

    def _line(self, metric_data: MetricData) -> str:
        timestamp, group, name, value = metric_data
        number = plain_number(value)
        if isinstance(number, float) and not math.isfinite(number):
            number = None  # JSON has no other word for it
        return json.dumps({"timestamp": timestamp, "group": group, "name": name, "value": number})


class CsvMetricHandler(_LinesHandler):
    """Writes the columns ``timestamp,group,name,value``, one line per value, with a header.

    Args:
        directory: gets ``metrics-<host>-<pid>.csv``; made if it is missing, its parent is not.
        stem: first part of the file name.
    """

    def __init__(self, directory: str | os.PathLike[str], stem: str = "metrics") -> None:
        super().__init__(LineFile(directory, stem, ".csv", header="timestamp,group,name,value"))

    def _line(self, metric_data: MetricData) -> str:
        text = io.StringIO()
        words = [word.replace("\n", " ") if isinstance(word, str) else word for word in metric_data[:3]]
        csv.writer(text, lineterminator="").writerow([*words, plain_number(metric_data.value)])
        return text.getvalue()

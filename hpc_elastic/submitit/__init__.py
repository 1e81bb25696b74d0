"""For code that uses submitit: a plug-in executor, and a task for submitit's own executors.

``submitit.AutoExecutor(folder, cluster="hpcelastic")`` needs no import: submitit finds the plug-in.
This package is imported by every process that uses submitit, so it loads nothing by itself.
"""

from hpc_elastic.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpc_elastic.submitit.job import HpcElasticJob
    from hpc_elastic.submitit.plugin import HpcElasticExecutor, HpcElasticJobEnvironment
    from hpc_elastic.submitit.task import ElasticTask

__all__ = ["ElasticTask", "HpcElasticExecutor", "HpcElasticJob", "HpcElasticJobEnvironment"]

_HOMES = {
    "ElasticTask": "task",
    "HpcElasticExecutor": "plugin",
    "HpcElasticJob": "job",
    "HpcElasticJobEnvironment": "plugin",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)

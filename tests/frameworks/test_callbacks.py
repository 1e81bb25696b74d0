"""The callbacks of Trainers, called as the Trainers call them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.frameworks import lightning
from hpc_elastic.frameworks.bases import check_same_trainer, check_trainer
from hpc_elastic.frameworks.torch.trainer_memory import TrainerMemory
from hpc_elastic.frameworks.transformers import output_dir

LIGHTNING_CATCHES_SIGTERM = """
import signal
import lightning as L
from hpc_elastic import worker
from hpc_elastic.frameworks.lightning import ElasticCallback
worker.attached = lambda: True
class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        import torch
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch, _):
        print("default" if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else "caught")
        return self.layer(batch).sum()
    def configure_optimizers(self):
        import torch
        return torch.optim.SGD(self.parameters())
    def train_dataloader(self):
        import torch
        return torch.utils.data.DataLoader(torch.ones(1, 1))
    def validation_step(self, batch, _):
        pass
    val_dataloader = train_dataloader
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
for callbacks in ([], [ElasticCallback()]):
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=1, callbacks=callbacks, **quiet)
    trainer.fit(Model())
from hpc_elastic.frameworks.lightning_resume import content_reason, unfit_reason
class Averages(L.Callback):
    def on_save_checkpoint(self, trainer, module, checkpoint):
        pass
def reasons():
    return [unfit_reason(trainer.strategy) or "-", content_reason(trainer, L.pytorch) or "-"]
found = reasons()
class Large(L.Callback):
    def state_dict(self):
        import torch
        return {"means": [torch.zeros(1 << 21)]}
for kind in (Averages, Large):
    trainer.callbacks.append(kind())
    found += reasons()[1:]
    trainer.callbacks.pop()
found.append(unfit_reason(type("DeepSpeedStrategy", (), {})()))
print("\\n".join(found).replace(" ", "_"))
from lightning.pytorch.plugins.environments import SLURMEnvironment
quiet.update(max_epochs=1, plugins=[SLURMEnvironment()])
elastic = ElasticCallback()
trainer = L.Trainer(accelerator="cpu", devices=1, callbacks=[elastic], **quiet)
for begin in (lambda: elastic.newest(trainer), lambda: trainer.fit(Model())):
    try:
        begin()
    except Exception as error:
        print(type(error).__name__)
"""


class Shape(NamedTuple):
    """What an agent tells of its round, and what Lightning is to make of it."""

    environ: dict[str, str]
    expected: dict[str, int]


@pytest.mark.parametrize(
    "shape",
    [
        Shape({}, {}),
        Shape({"LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}, {"devices": 4, "num_nodes": 2}),
    ],
)
def test_the_shape_is_that_of_the_round(shape: Shape) -> None:
    """Without an agent Lightning decides."""
    assert shape.expected == lightning.trainer_shape(shape.environ)


def test_output_lies_in_the_run_directory_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a run it is below the current directory."""
    monkeypatch.setattr("hpc_elastic.worker.run_dir", lambda: "/scratch/run")
    assert "/scratch/run/out" == output_dir("out")
    monkeypatch.setattr("hpc_elastic.worker.run_dir", lambda: None)
    assert "out" == output_dir("out")


class SLURMEnvironment:
    """What Lightning's is called, and those that people derive from it."""


def test_lightnings_own_requeue_is_refused() -> None:
    """Two who requeue, and ranks of Slurm's tasks, which are one per node here."""
    for environment in (SLURMEnvironment(), type("Mine", (SLURMEnvironment,), {})()):
        with pytest.raises(
            InputError, match=r"plugins of the Trainer: SLURMEnvironment takes a rank per task"
        ):
            lightning._refuse_slurm(environment)
    lightning._refuse_slurm(None)
    lightning._refuse_slurm(Control())


def test_a_trainer_without_the_callback_is_refused() -> None:
    """It would train, but neither stop nor keep a state; so would one that was not given."""
    callback = Control()
    other = Control()
    check_trainer(callback, other, [other, callback])
    with pytest.raises(
        InputError, match=r"^Control\.newest: Control is no Trainer\n  fix: give the Trainer that"
    ):
        check_trainer(callback, Control(), None)
    with pytest.raises(
        InputError, match=r"does not have this callback.*\n  fix: elastic = Control\(\.\.\.\)"
    ):
        check_trainer(callback, other, [other])
    check_same_trainer(callback, is_same=True)
    with pytest.raises(InputError, match="is not the one that was given"):
        check_same_trainer(callback, is_same=False)


def test_a_state_in_memory_is_not_loaded_into_a_training_that_begins_elsewhere() -> None:
    """Its path was not given to the Trainer: the weights of one step would go on as those of another one."""
    memory: Any = object.__new__(TrainerMemory)
    memory._found = SimpleNamespace(state=SimpleNamespace(step=10))
    with pytest.raises(
        InputError, match=r"begins at step 0, but newest\(\) .* step 10\n  fix: .*: t\.fit\(\)$"
    ):
        memory.load({}, 0, "t.fit()")


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_sigterm_is_not_lightnings() -> None:
    """Its handler waits for other ranks in a collective; nor is the shape of the run Slurm's."""
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("needs lightning")
    done = subprocess.run(
        [sys.executable, "-c", LIGHTNING_CATCHES_SIGTERM],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert 0 == done.returncode, done.stderr
    asked = done.stdout.split()
    assert ["caught", "default", "InputError", "InputError"] == [*asked[:2], *asked[7:]]
    assert [
        *("-", "-", "Averages_has_an_on_save_checkpoint_of_its_own", "Large_has_a_large_state"),
        "DeepSpeedStrategy_is_not_known_to_leave_a_whole_state_on_each_rank",
    ] == asked[2:7], "the reasons for which states are in files alone"


class Control:
    """What Hugging Face's Trainer asks its callbacks about."""

    should_save = should_evaluate = should_training_stop = False


@pytest.mark.torch
@pytest.mark.slow
def test_states_that_a_trainer_cannot_keep_whole_are_in_files_alone() -> None:
    """DeepSpeed and FSDP cut them; a Trainer that saves in a way of its own may save more."""
    transformers = pytest.importorskip("transformers")
    from hpc_elastic.frameworks.transformers_resume import unfit_reason  # noqa: PLC0415 - loads PyTorch

    own = {"_save_optimizer_and_scheduler": lambda *_: None}
    usual, other = (type(name, (transformers.Trainer,), more) for name, more in (("A", {}), ("B", own)))
    trainer: Any = object.__new__(usual)
    trainer.is_deepspeed_enabled = trainer.is_fsdp_enabled = False
    trainer.args = transformers.TrainingArguments(auto_find_batch_size=True, use_cpu=True)
    assert "auto_find_batch_size may begin again with other batches" == unfit_reason(trainer)
    trainer.args.auto_find_batch_size = False
    assert not unfit_reason(trainer)
    trainer.is_fsdp_enabled = True
    assert "DeepSpeed, FSDP and tensor parallelism cut it into parts" == unfit_reason(trainer)
    assert "B has a _save_optimizer_and_scheduler of its own" == unfit_reason(object.__new__(other))


@pytest.mark.torch
@pytest.mark.slow
def test_a_stop_saves_and_does_not_evaluate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An evaluation that is due at the same step would take the time that is left for saving."""
    pytest.importorskip("transformers")
    from hpc_elastic.frameworks.transformers import ElasticTrainerCallback  # noqa: PLC0415 - loads it

    callback: Any = ElasticTrainerCallback()
    state: Any = type("State", (), {"global_step": 5})
    control: Any = Control()
    control.should_evaluate = True
    callback.on_step_end(None, state, control)
    assert (False, True, False) == (control.should_save, control.should_evaluate, callback.stopped)
    monkeypatch.setattr("hpc_elastic.worker.should_stop", lambda: True)
    callback.on_step_end(None, state, control)
    assert (True, False, True) == (control.should_save, control.should_evaluate, control.should_training_stop)
    (tmp_path / "checkpoint-5").mkdir()
    callback.on_save(type("Args", (), {"output_dir": str(tmp_path)}), state, control)
    control.should_save = True
    callback.on_epoch_end(None, state, control)
    assert not control.should_save
    assert callback.stopped

"""Programs that train several times, with Trainers of Lightning's or Hugging Face's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from hpc_elastic.ids import Env

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(400)]
REPOSITORY = Path(__file__).parents[2]

LIGHTNING = """
import sys, torch
import lightning as L
from hpc_elastic.frameworks.lightning import ElasticCallback
class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch, _):
        return self.layer(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(3, 1))
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
def train(elastic, epochs):
    trainer = L.Trainer(max_epochs=epochs, accelerator="cpu", devices=1, callbacks=[elastic], **quiet)
    trainer.fit(Model(), ckpt_path=elastic.newest(trainer))
    print("TRAINED", trainer.global_step, flush=True)
def callback(name):
    return ElasticCallback(save_every=2, name=name)
"""

TRANSFORMERS = """
import sys, torch
from transformers import Trainer, TrainingArguments
from hpc_elastic.frameworks.transformers import ElasticTrainerCallback, output_dir
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def forward(self, x):
        return {"loss": self.layer(x).sum()}
def train(elastic, epochs):
    args = TrainingArguments(output_dir(elastic.of), num_train_epochs=epochs, save_steps=2, report_to=[],
        per_device_train_batch_size=1, use_cpu=True, disable_tqdm=True)
    data = [{"x": torch.ones(1)} for _ in range(3)]
    trainer = Trainer(Model(), args, train_dataset=data, callbacks=[elastic])
    trainer.train(resume_from_checkpoint=elastic.newest(trainer))
    print("TRAINED", trainer.state.global_step, flush=True)
def callback(name):
    found = ElasticTrainerCallback(name=name)
    found.of = name or "output"
    return found
"""

END = """
try:
    for name, epochs in zip(sys.argv[1].split(","), (2, 1)):
        train(callback(name), epochs)
except Exception as error:
    print("REFUSED", str(error).replace(chr(10), " "), flush=True)
"""


def trained(place: Path, program: str, names: str) -> list[str]:
    """Run a program with a run directory; return its lines."""
    own = ("HPC_ELASTIC", "TORCHELASTIC_", "SLURM_")
    environ = {name: text for name, text in os.environ.items() if not name.startswith(own)}
    environ |= {
        Env.RUN_DIR: str(place),
        Env.ROUND: "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(REPOSITORY),
    }
    place.mkdir(exist_ok=True)
    argv = [sys.executable, "-c", program + END, names]
    done = subprocess.run(argv, cwd=place, env=environ, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("TRAINED", "REFUSED"))]
    assert lines, done.stdout + done.stderr
    return lines


@pytest.mark.parametrize(
    ("program", "kind"),
    [(LIGHTNING, "ElasticCallback"), (TRANSFORMERS, "ElasticTrainerCallback")],
    ids=["lightning", "transformers"],
)
def test_each_training_of_a_program_has_checkpoints_of_its_own(
    tmp_path: Path, program: str, kind: str
) -> None:
    """By a name: a start goes on with each of them; of one name the second is refused as it begins."""
    for _ in range(2):
        assert ["TRAINED 6", "TRAINED 3"] == trained(tmp_path / "named", program, "first,second")
    first, refused = trained(tmp_path / "alike", program, ",")
    assert "TRAINED 6" == first
    assert "another Trainer has come to step 6 in this program" in refused
    assert f'{kind}(name="first")' in refused


@pytest.mark.parametrize("program", [LIGHTNING, TRANSFORMERS], ids=["lightning", "transformers"])
def test_a_second_training_gets_no_state_of_a_first_one_that_was_complete(
    tmp_path: Path, program: str
) -> None:
    """The start before has failed between both, so this one has made no step of the first."""
    assert ["TRAINED 6"] == trained(tmp_path / "run", program, "")
    first, refused = trained(tmp_path / "run", program, ",")
    assert "TRAINED 6" == first
    assert "another Trainer has come to step 6 in this program" in refused


def test_a_second_training_without_a_look_at_checkpoints_is_refused_as_it_begins(tmp_path: Path) -> None:
    """Its first save would be one of a lower step than those of the training before."""
    program = LIGHTNING.replace("elastic.newest(trainer)", "None")
    first, refused = trained(tmp_path, program, ",")
    assert "TRAINED 6" == first
    assert "a training begins at step 0, and another one has come to step 6" in refused

"""Lightning, Hugging Face's Trainer, accelerate and Fabric, with tiny models."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.harmless.programs import framework, program
from tests.harmless.trial import STEPS, Training, Trial, digest, random_digest

OPTIM = torch.optim
SAVE_EVERY = 4


class Loader(torch.utils.data.DataLoader):
    """Goes on in the middle of an epoch, as in examples/lightning_trainer."""

    done = 0  # batches of this epoch that were handed out

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the epoch that are left."""
        skip, self.done = self.done % len(self), 0
        for batch in super().__iter__():
            self.done += 1
            if self.done > skip:
                yield batch

    def state_dict(self) -> dict[str, int]:
        """Return the place."""
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Set the place."""
        self.done = state["done"]


def _data(trial: Trial) -> Any:
    return torch.cat([trial.batch(number) for number in range(STEPS)])


def _fit(trial: Trial, module: Any, **options: Any) -> None:
    import lightning as L  # noqa: N812, PLC0415 - of these programs alone

    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)
    callbacks: list[Any] = []
    if trial.checkpoints is not None:
        from hpc_elastic.frameworks.lightning import ElasticCallback  # noqa: PLC0415 - a bare one knows nothing

        callbacks = [ElasticCallback(save_every=SAVE_EVERY)]
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        strategy="ddp_find_unused_parameters_true",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=callbacks,
        **options,
    )
    loader = Loader(_data(trial), batch_size=8, shuffle=False)
    path = callbacks[0].newest(trainer) if callbacks else None
    trainer.fit(module, loader, ckpt_path=path)
    trial.tell(end=digest(module, *trainer.optimizers), random=random_digest())


@framework(libraries=("lightning",))
def lightning_automatic(trial: Trial) -> None:
    """Lightning, automatic optimization, with clipping and a schedule."""
    import lightning as L  # noqa: N812, PLC0415 - of these programs alone

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = trial.net()

        def training_step(self, batch: Any, number: int) -> Any:
            trial.begins(number)
            loss = self.net(batch).square().mean()
            trial.fault("forward")
            return loss

        def on_after_backward(self) -> None:
            trial.fault("backward")

        def optimizer_step(self, *args: Any, **options: Any) -> None:
            with trial.torn():
                super().optimizer_step(*args, **options)

        def on_train_batch_end(self, *_: Any) -> None:
            trial.fault("between")

        def configure_optimizers(self) -> Any:
            optimizer = OPTIM.AdamW(self.parameters(), lr=0.02)
            schedule = OPTIM.lr_scheduler.StepLR(optimizer, 4)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    _fit(trial, Module(), gradient_clip_val=0.5)


@framework(libraries=("lightning",))
def lightning_manual(trial: Trial) -> None:
    """Lightning, manual optimization: the second of two optimizers steps first in batch 5."""
    import lightning as L  # noqa: N812, PLC0415 - of these programs alone

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.judge, self.maker = trial.net(), trial.net(out=6)

        def training_step(self, batch: Any, number: int) -> None:
            trial.begins(number)
            first, second = self.optimizers()
            first.zero_grad()
            loss = self.judge(self.maker(batch).detach()).square().mean()
            trial.fault("forward")
            self.manual_backward(loss)
            trial.fault("backward")
            with trial.torn():
                first.step()
            if number % 5 == 4:
                second.zero_grad()
                self.manual_backward((self.judge(self.maker(batch)) - 1).square().mean())
                second.step()
                second.zero_grad()

        def on_train_batch_end(self, *_: Any) -> None:
            trial.fault("between")

        def configure_optimizers(self) -> Any:
            decay = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1}
            return OPTIM.Adam(self.judge.parameters(), lr=0.02), OPTIM.RMSprop(
                self.maker.parameters(), **decay
            )

    _fit(trial, Module())


class Points(torch.utils.data.Dataset):
    """Points, each a function of its number."""

    def __len__(self) -> int:
        """Return how many there are."""
        return 400

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return x and y."""
        x = torch.randn(6, generator=torch.Generator().manual_seed(index))
        return {"x": x, "labels": x.sum()}


@framework(libraries=("transformers", "accelerate"))
def hf_trainer(trial: Trial) -> None:
    """Hugging Face's Trainer with accumulation and a schedule."""
    from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: PLC0415 - as above

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = trial.net(out=1)

        def forward(self, x: Any, labels: Any) -> Any:
            loss = (self.net(x).squeeze(-1) - labels).square().mean()
            trial.fault("forward")
            return {"loss": loss}

    class Faults(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            trial.begins(state.global_step)

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            trial.fault("backward")

        def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            trial.fault("between")

    callbacks: list[Any] = [Faults()]
    folder = str(trial.place / "output")
    if trial.checkpoints is not None:
        from hpc_elastic.frameworks.transformers import ElasticTrainerCallback  # noqa: PLC0415 - as above

        callbacks.append(ElasticTrainerCallback())
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=STEPS,
        save_steps=SAVE_EVERY,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=0.05,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        logging_steps=100,
    )
    model = Model()
    trainer = Trainer(model, arguments, train_dataset=Points(), callbacks=callbacks)
    path = callbacks[1].newest(trainer) if len(callbacks) > 1 else None
    trainer.train(resume_from_checkpoint=path)
    trial.tell(end=digest(model, trainer.optimizer.optimizer, trainer.lr_scheduler), random=random_digest())


@program("frameworks", libraries=("accelerate",))
def accelerate(trial: Trial) -> Training:
    """A loop with accelerate, its wrappers in the state."""
    from accelerate import Accelerator  # noqa: PLC0415 - as above

    accelerator = Accelerator(cpu=True)
    net = trial.net()
    optimizer = OPTIM.AdamW(net.parameters(), lr=0.02)
    schedule = OPTIM.lr_scheduler.StepLR(optimizer, 4)
    net, optimizer, schedule = accelerator.prepare(net, optimizer, schedule)

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = net(trial.batch(number)).square().mean()
        trial.fault("forward")
        accelerator.backward(loss)
        trial.fault("backward")
        trial.update(optimizer.step)
        schedule.step()

    return Training({"net": net, "optimizer": optimizer, "schedule": schedule}, step)


@program("frameworks", libraries=("lightning",))
def fabric(trial: Trial) -> Training:
    """A loop with Lightning Fabric, its wrappers in the state."""
    import lightning as L  # noqa: N812, PLC0415 - as above

    fabric_ = L.Fabric(accelerator="cpu", devices=1)
    fabric_.launch()
    net = trial.net()
    net, optimizer = fabric_.setup(net, OPTIM.AdamW(net.parameters(), lr=0.02))

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = net(trial.batch(number)).square().mean()
        trial.fault("forward")
        fabric_.backward(loss)
        trial.fault("backward")
        trial.update(optimizer.step)

    return Training({"net": net, "optimizer": optimizer}, step)

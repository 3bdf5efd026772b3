"""What is trained: the part of a plan that stays the same whatever it is trained on."""

from dataclasses import dataclass, replace

import optax
from jax.sharding import AbstractMesh, Mesh

from jzero.base.types import Batch, LossFn, Mask
from jzero.config import Config, ResolvedConfig, TrainingArguments
from jzero.zero.build import Functional, build_functional
from jzero.zero.shapes import Trainable, adapted, model_width


@dataclass(frozen=True)
class Training:
    """What is trained.

    Attributes:
        model: see `jzero.initialize`.
        loss_fn: see `jzero.initialize`.
        config: a loaded configuration; may hold `"auto"`.
        sample_batch: a pytree of arrays or `jax.ShapeDtypeStruct`s with leading dimension `train_batch_size`.
        optimizer: see `jzero.initialize`.
        trainable: see `jzero.initialize`.
        training_arguments: what `"auto"` is filled from.
        hidden_size: the model's width; read off the parameters if None.
        rematerialised: the same model with rematerialised blocks; None if there is none.
    """

    model: object
    loss_fn: LossFn
    config: Config
    sample_batch: Batch
    optimizer: optax.GradientTransformation | None = None
    trainable: Trainable | Mask | None = None
    training_arguments: TrainingArguments | None = None
    hidden_size: int | None = None
    rematerialised: object | None = None

    def adapted(self) -> "Training":
        """The same with both models adapted, so that all that is made of it shares one trace of each."""
        adapt = lambda model: None if model is None else adapted(model, self.loss_fn, self.config)
        return replace(self, model=adapt(self.model), rematerialised=adapt(self.rematerialised))

    def resolved(self, world: int) -> ResolvedConfig:
        """The configuration for so many devices; without a schedule, which may need a number of steps to train."""
        width = self.hidden_size or (
            lambda: model_width(adapted(self.model, self.loss_fn, self.config), self.sample_batch)
        )
        return self.config.model_copy(update={"scheduler": None}).resolve(
            world=world, training_arguments=self.training_arguments, hidden_size=width
        )

    def functional(self, mesh: Mesh | AbstractMesh) -> Functional:
        """The functional layer on a mesh, from a configuration that is resolved for it."""
        assert isinstance(self.config, ResolvedConfig)
        return build_functional(
            model=self.model,
            loss_fn=self.loss_fn,
            config=self.config,
            sample_batch=self.sample_batch,
            mesh=mesh,  # pyright: ignore[reportArgumentType]
            optimizer=self.optimizer,
            trainable=self.trainable,
        )

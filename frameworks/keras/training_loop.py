"""The training loop of a Keras network: Keras's own callbacks, and resuming after the last complete epoch."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from frameworks.augmentation import Augmentation
from frameworks.epochs import LABEL_SMOOTHING, VALIDATION_BATCH, History, shuffled
from frameworks.keras.model import nhwc
from frameworks.keras.tensorflow_setup import start_tensorflow
from gauntlet.core.arrays import Array
from gauntlet.core.artifact import fsync, write_atomically
from gauntlet.core.errors import StageError
from gauntlet.core.report import Check
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import Splits, batches, require_labels
from gauntlet.frameworks.training import Device, LoopConfig

Batch = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
PLATEAU_EPOCHS = 1
"""Without a lower validation loss."""
PLATEAU_FACTOR = 0.3
"""On the learning rate, at a plateau."""


class KerasLoopConfig(LoopConfig):
    """Hyperparameters of a Keras training."""

    epochs: int = Field(10, ge=1, le=1000)
    patience: int = Field(4, ge=1, description="stop after this many epochs without a lower validation loss")
    learning_rate: float = Field(2e-3, gt=0, description="of AdamW, until the first plateau")
    augment: Augmentation | None = Field(None, description="random changes to the training images")

    @field_validator("device")
    @classmethod
    def _on_the_cpu(cls, device: Device) -> Device:
        if device == "cuda":
            raise ValueError(
                "Keras trains on the CPU here, because TensorFlow's libraries for CUDA 12 do not go with the others' "
                "for CUDA 13; allowed: auto, cpu. Fix: remove it, or train with PyTorch (train.kind: torch)"
            )
        return device


class KerasTrainingLoop:
    """One training. The sample order of an epoch depends only on the seed and the epoch's number.

    `state.json` in the workspace lists the complete epochs; only it determines which weight files are valid.
    """

    def __init__(
        self, config: KerasLoopConfig, network: Any, data: Splits, signature: Signature, workspace: Workspace
    ) -> None:
        keras = start_tensorflow()
        self.config, self.data, self.workspace = config, data, workspace
        self.signature, self.name = signature, signature.inputs[0].name
        self.one_hot = np.eye(len(signature.labels), dtype=np.float32)
        self.steps = -(-len(data["train"]) // config.batch_size)
        self.trainer = keras.Model(network.inputs, network.outputs)  # keeps training state out of the network
        self.trainer.compile(
            keras.optimizers.AdamW(config.learning_rate, weight_decay=config.weight_decay),
            keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=LABEL_SMOOTHING),
            metrics=["accuracy"],
            jit_compile=False,  # compiling takes minutes on a CPU, and its steps are slower
        )
        self.history = History(config)
        self.data_error: StageError | None = None
        self.state = workspace.folder / "state.json"

    def run(self) -> Check:
        """Train, from the last complete epoch if there is one; see `TrainingLoop.run`."""
        if self.state.exists():
            self.history.restore(json.loads(self.state.read_text("utf-8")))
            self.trainer.optimizer.build(self.trainer.trainable_variables)
            self.trainer.load_weights(self._weights_file("last", len(self.history.epochs)))
        if self.history.over:
            return self.history.check()
        try:
            self.trainer.fit(
                self._dataset(self._training, self.steps),
                validation_data=self._dataset(self._validation, -(-len(self.data["validation"]) // VALIDATION_BATCH)),
                initial_epoch=len(self.history.epochs),
                epochs=self.config.epochs,
                callbacks=self._callbacks(),
                shuffle=False,
                verbose=0,
            )
        except Exception as error:
            if self.data_error is None:
                raise
            raise self.data_error from error
        return self.history.check()

    def restore_best(self) -> None:
        """Give the network the weights of its best epoch."""
        self.trainer.load_weights(self._weights_file("best", self.history.best_epoch))

    def _dataset(self, read: Callable[[], Iterator[Batch]], length: int) -> Any:
        """Return a dataset that calls `read` in each epoch; a smaller last batch needs no second trace."""
        import tensorflow as tf

        def generate() -> Iterator[Batch]:
            try:
                yield from read()
            except StageError as error:  # TensorFlow converts it to text
                self.data_error = error
                raise

        images = tf.TensorSpec((None, *self.trainer.input_shape[1:]), tf.float32)
        labels = tf.TensorSpec((None, len(self.one_hot)), tf.float32)
        dataset = tf.data.Dataset.from_generator(generate, output_signature=(images, labels))
        return dataset.apply(tf.data.experimental.assert_cardinality(length))

    def _training(self) -> Iterator[Batch]:
        split, size, layout = self.data["train"], self.config.batch_size, self.signature.layout
        labels, seed = require_labels(split), [self.config.seed, len(self.history.epochs) + 1]
        for step, chosen in enumerate(shuffled(len(split), size, np.random.default_rng(seed))):
            inputs = split.take(chosen)[self.name]
            if self.config.augment:
                rng, how = np.random.default_rng([*seed, step]), self.signature.preprocessing
                inputs = self.config.augment.apply(inputs, rng, layout=layout, preprocessing=how)
            yield self._images(inputs), self.one_hot[labels[chosen]]

    def _validation(self) -> Iterator[Batch]:
        split = self.data["validation"]
        labels = np.array_split(require_labels(split), range(VALIDATION_BATCH, len(split), VALIDATION_BATCH))
        for inputs, some in zip(batches(split, VALIDATION_BATCH), labels, strict=True):
            yield self._images(inputs[self.name]), self.one_hot[some]

    def _images(self, inputs: Array) -> npt.NDArray[np.float32]:
        return np.ascontiguousarray(nhwc(inputs, self.signature.layout), np.float32)

    def _callbacks(self) -> list[Any]:
        """Return Keras's callbacks; the last one records an epoch after the others have acted on it."""
        callbacks = start_tensorflow().callbacks
        plateau = callbacks.ReduceLROnPlateau(factor=PLATEAU_FACTOR, patience=PLATEAU_EPOCHS, min_delta=0)
        patience = callbacks.EarlyStopping(patience=self.config.patience)
        best_file = self.workspace.folder / "best-{epoch:04d}.weights.h5"
        best = callbacks.ModelCheckpoint(best_file, save_best_only=True, save_weights_only=True)

        def replay(logs: object) -> None:
            """Replay the epochs of an earlier process to the callbacks."""
            optimizer = self.trainer.optimizer
            rate = float(optimizer.learning_rate)
            for callback in (plateau, patience, best):
                callback.best = float("inf")  # by default the first loss is the best, even NaN
            for epoch in self.history.epochs:
                for callback in (plateau, patience):
                    callback.on_epoch_end(epoch.epoch - 1, {"val_loss": epoch.validation_loss})
            best.best = patience.best
            optimizer.learning_rate = rate

        after = {"on_train_batch_end": self._after_batch, "on_epoch_end": self._after_epoch}
        recorder = callbacks.LambdaCallback(on_train_begin=replay, **after)
        return [plateau, patience, best, callbacks.TerminateOnNaN(), recorder]

    def _after_batch(self, step: int, logs: object) -> None:
        done = len(self.history.epochs) * self.steps + step + 1
        self.workspace.progress(done, self.config.epochs * self.steps, "batch")

    def _after_epoch(self, index: int, logs: Mapping[str, Any]) -> None:
        self.history.last_loss = loss = float(logs["loss"])
        if not np.isfinite(loss):
            return
        rate = float(self.trainer.optimizer.learning_rate)
        values = (float(logs["val_loss"]), float(logs["val_accuracy"]), rate, float(logs["accuracy"]))
        metrics = self.history.add(loss, *values)
        self._save()
        self.workspace.progress(index + 1, self.config.epochs, "epoch", **metrics)

    def _weights_file(self, what: str, epoch: int) -> Path:
        return self.workspace.folder / f"{what}-{epoch:04d}.weights.h5"

    def _save(self) -> None:
        """Write the weights and the optimizer, then the state that names them, then delete all other weight files."""
        last = self._weights_file("last", len(self.history.epochs))
        self.trainer.save_weights(last)
        best = self.history.best_epoch
        kept = {last, self._weights_file("best", best)} if best else {last}
        for path in kept:
            fsync(path)
        write_atomically(self.state, json.dumps(self.history.dump()))
        for path in self.workspace.folder.glob("*.weights.h5"):
            if path not in kept:
                path.unlink()

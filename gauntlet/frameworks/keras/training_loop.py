"""The training loop of a Keras network: Keras's own callbacks, and what a restart at the last whole epoch needs."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gauntlet.core.artifact import fsync, write_atomically
from gauntlet.core.errors import StageError
from gauntlet.core.report import Check
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import Split, batches, require_labels
from gauntlet.frameworks.keras.model import nhwc
from gauntlet.frameworks.keras.tensorflow_setup import start_tensorflow
from gauntlet.frameworks.training import EpochMetrics, History, LearningConfig, shuffled
from gauntlet.images.augmentation import Augmentation

Batch = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
VALIDATION_BATCH = 64


class KerasLoopConfig(LearningConfig):
    """How long and how fast a Keras network learns."""

    epochs: int = Field(10, ge=1, le=1000)
    patience: int = Field(4, ge=1, description="stop after this many epochs without a lower validation loss")
    learning_rate: float = Field(2e-3, gt=0, description="of AdamW, until the first plateau")
    plateau_patience: int = Field(1, ge=1, description="epochs without a lower validation loss that make a plateau")
    plateau_factor: float = Field(0.3, gt=0, lt=1, description="what the learning rate is multiplied with then")
    augment: Augmentation | None = Field(None, description="changes to the training pictures")


class KerasTrainingLoop:
    """One training. An epoch's order depends on the seed and its number alone.

    `state.json` in the workspace lists the whole epochs; only it tells which of the weight files beside it counts.
    """

    def __init__(
        self,
        config: KerasLoopConfig,
        network: Any,
        data: Mapping[str, Split],
        signature: Signature,
        workspace: Workspace,
    ) -> None:
        keras = start_tensorflow()
        self.config, self.data, self.out = config, data, workspace
        self.signature, self.name = signature, signature.inputs[0].name
        self.codes = np.eye(len(signature.labels), dtype=np.float32)
        self.steps = -(-len(data["train"]) // config.batch_size)
        self.trainer = keras.Model(network.inputs, network.outputs)  # the network itself stays free of training
        self.trainer.compile(
            keras.optimizers.AdamW(config.learning_rate, weight_decay=config.weight_decay),
            keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=config.label_smoothing),
            metrics=["accuracy"],
            jit_compile=False,  # compiling takes minutes on a CPU, and its steps are slower
        )
        self.history = History(config)
        self.unread: StageError | None = None
        self.state = workspace.folder / "state.json"

    def run(self) -> Check:
        """Train from where an earlier process stopped, if one did; see `TrainingLoop.run`."""
        self._resume()
        if not self.history.over:
            self._fit()
        return self.history.check()

    def _fit(self) -> None:
        try:
            self.trainer.fit(
                self._stream(self._training, self.steps),
                validation_data=self._stream(self._validation, -(-len(self.data["validation"]) // VALIDATION_BATCH)),
                initial_epoch=len(self.history.epochs),
                epochs=self.config.epochs,
                callbacks=self._callbacks(),
                shuffle=False,
                verbose=0,
            )
        except Exception as error:
            if self.unread is None:
                raise
            raise self.unread from error

    def restore_best(self) -> None:
        """Give the network the weights of its best epoch."""
        self.trainer.load_weights(self._file("best", self.history.best_epoch))

    def _stream(self, read: Callable[[], Iterator[Batch]], length: int) -> Any:
        """Return a data set that calls `read` in each epoch; TensorFlow needs no second trace for a smaller batch."""
        import tensorflow as tf

        def told() -> Iterator[Batch]:
            try:
                yield from read()
            except StageError as error:  # TensorFlow would make a text of it
                self.unread = error
                raise

        pictures = tf.TensorSpec((None, *self.trainer.input_shape[1:]), tf.float32)
        codes = tf.TensorSpec((None, len(self.codes)), tf.float32)
        stream = tf.data.Dataset.from_generator(told, output_signature=(pictures, codes))
        return stream.apply(tf.data.experimental.assert_cardinality(length))

    def _training(self) -> Iterator[Batch]:
        split, size, augment = self.data["train"], self.config.batch_size, self.config.augment
        labels, number = require_labels(split), len(self.history.epochs) + 1
        for step, chosen in enumerate(shuffled(len(split), size, np.random.default_rng([self.config.seed, number]))):
            inputs = split.take(chosen)[self.name]
            if augment:
                rng = np.random.default_rng([self.config.seed, number, step])
                how = self.signature.preprocessing
                inputs = augment.apply(inputs, rng, layout=self.signature.layout, preprocessing=how)
            yield self._pictures(inputs), self.codes[labels[chosen]]

    def _validation(self) -> Iterator[Batch]:
        split = self.data["validation"]
        places = np.array_split(require_labels(split), range(VALIDATION_BATCH, len(split), VALIDATION_BATCH))
        for inputs, labels in zip(batches(split, VALIDATION_BATCH), places, strict=True):
            yield self._pictures(inputs[self.name]), self.codes[labels]

    def _pictures(self, inputs: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
        return np.ascontiguousarray(nhwc(inputs, self.signature.layout), np.float32)

    def _callbacks(self) -> list[Any]:
        """Return Keras's callbacks, and last the one that keeps the books: it sees what the others have done."""
        callbacks, config = start_tensorflow().callbacks, self.config
        plateau = callbacks.ReduceLROnPlateau(
            factor=config.plateau_factor, patience=config.plateau_patience, min_delta=0
        )
        patience = callbacks.EarlyStopping(patience=config.patience)
        best = callbacks.ModelCheckpoint(
            self.out.folder / "best-{epoch:04d}.weights.h5", save_best_only=True, save_weights_only=True
        )
        watched = (plateau, patience)

        def relive(logs: object) -> None:
            """Let the callbacks go through the epochs of an earlier process."""
            optimizer = self.trainer.optimizer
            rate = float(optimizer.learning_rate)
            for callback in (*watched, best):
                callback.best = float("inf")  # by default the first loss is the best one, NaN too
            for epoch in self.history.epochs:
                for callback in watched:
                    callback.on_epoch_end(epoch.epoch - 1, {"val_loss": epoch.validation_loss})
            best.best = patience.best
            optimizer.learning_rate = rate

        books = callbacks.LambdaCallback(
            on_train_begin=relive, on_train_batch_end=self._after_batch, on_epoch_end=self._after_epoch
        )
        return [plateau, patience, best, callbacks.TerminateOnNaN(), books]

    def _after_batch(self, step: int, logs: object) -> None:
        done = len(self.history.epochs) * self.steps + step + 1
        self.out.progress(done, self.config.epochs * self.steps, "batch")

    def _after_epoch(self, place: int, logs: Mapping[str, Any]) -> None:
        number, loss = place + 1, float(logs["loss"])
        self.history.last_loss = loss
        if not np.isfinite(loss):
            return
        epoch = EpochMetrics(
            epoch=number,
            train_loss=loss,
            validation_loss=float(logs["val_loss"]),
            validation_accuracy=float(logs["val_accuracy"]),
            learning_rate=float(self.trainer.optimizer.learning_rate),
        )
        self.history.epochs.append(epoch)
        self._save()
        self.out.progress(number, self.config.epochs, "epoch", **epoch.model_dump(exclude={"epoch"}))

    def _file(self, what: str, epoch: int) -> Any:
        return self.out.folder / f"{what}-{epoch:04d}.weights.h5"

    def _save(self) -> None:
        """Write the weights and the optimizer, then the list that names them, then remove what nothing names."""
        last = self._file("last", len(self.history.epochs))
        self.trainer.save_weights(last)
        named = {last, self._file("best", self.history.best_epoch)} if self.history.best_epoch else {last}
        for path in named:
            fsync(path)
        write_atomically(self.state, json.dumps(self.history.dump()))
        for path in self.out.folder.glob("*.weights.h5"):
            if path not in named:
                path.unlink()

    def _resume(self) -> None:
        if not self.state.exists():
            return
        self.history.restore(json.loads(self.state.read_text("utf-8")))
        self.trainer.optimizer.build(self.trainer.trainable_variables)
        self.trainer.load_weights(self._file("last", len(self.history.epochs)))

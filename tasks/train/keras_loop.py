"""The training loop of a Keras network: Keras's own callbacks, and what a restart at the last whole epoch needs."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tasks.artifact import flush, write_whole
from tasks.data.dataset import Split, batches, labels_of
from tasks.errors import StageError
from tasks.signature import Signature
from tasks.sources.keras.answers import nhwc
from tasks.sources.keras.start import start
from tasks.sources.learning import Epoch
from tasks.workspace import Workspace

if TYPE_CHECKING:
    from tasks.train.keras import KerasTraining

Batch = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
VALIDATION_BATCH = 64


class Loop:
    """One training. An epoch's order depends on the seed and its number alone.

    `state.json` in the workspace lists the whole epochs; only it tells which of the weight files beside it counts.
    """

    def __init__(
        self, config: "KerasTraining", network: Any, data: Mapping[str, Split], signature: Signature, out: Workspace
    ) -> None:
        keras = start()
        self.config, self.data, self.out = config, data, out
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
        self.history: list[Epoch] = []
        self.broken: tuple[float, int] | None = None
        self.unread: StageError | None = None
        self.state = out.folder / "state.json"

    @property
    def best_epoch(self) -> int:
        """The first epoch with the lowest finite validation loss, or 0."""
        finite = [e for e in self.history if np.isfinite(e.validation_loss)]
        return min(finite, key=lambda e: e.validation_loss).epoch if finite else 0

    @property
    def stopped_early(self) -> bool:
        """Whether patience ended it; Keras never stops after the first epoch."""
        done = len(self.history)
        return 1 < done < self.config.epochs and done - self.best_epoch >= self.config.patience

    @property
    def outcome(self) -> tuple[float, str]:
        """The loss that decides whether there is a model, and where it was met."""
        if self.broken:
            return self.broken[0], f"epoch {self.broken[1]}, training images"
        last = self.history[-1]
        if not self.best_epoch:  # batch statistics can keep the training loss finite while the model answers NaN
            return last.validation_loss, f"epoch {last.epoch}, validation images"
        return last.train_loss, f"epoch {last.epoch}"

    def run(self) -> None:
        """Train from where an earlier process stopped, if one did."""
        self._resume()
        done = len(self.history)
        if done >= self.config.epochs or self.stopped_early:
            return
        try:
            self.trainer.fit(
                self._stream(self._training, self.steps),
                validation_data=self._stream(self._validation, -(-len(self.data["validation"]) // VALIDATION_BATCH)),
                initial_epoch=done,
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
        self.trainer.load_weights(self._file("best", self.best_epoch))

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
        labels, number = labels_of(split), len(self.history) + 1
        order = np.random.default_rng([self.config.seed, number]).permutation(len(split))
        for step in range(self.steps):
            chosen = order[step * size : (step + 1) * size]
            if len(chosen) == 1:  # batch normalisation has no variance of one image
                chosen = np.append(chosen, order[0])
            inputs = split.take(chosen)[self.name]
            if augment:
                rng = np.random.default_rng([self.config.seed, number, step])
                how = self.signature.preprocessing
                inputs = augment.apply(inputs, rng, layout=self.signature.layout, preprocessing=how)
            yield self._pictures(inputs), self.codes[labels[chosen]]

    def _validation(self) -> Iterator[Batch]:
        split = self.data["validation"]
        places = np.array_split(labels_of(split), range(VALIDATION_BATCH, len(split), VALIDATION_BATCH))
        for inputs, labels in zip(batches(split, VALIDATION_BATCH), places, strict=True):
            yield self._pictures(inputs[self.name]), self.codes[labels]

    def _pictures(self, inputs: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
        return np.ascontiguousarray(nhwc(inputs, self.signature.layout), np.float32)

    def _callbacks(self) -> list[Any]:
        """Return Keras's callbacks, and last the one that keeps the books: it sees what the others have done."""
        callbacks, config = start().callbacks, self.config
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
            for epoch in self.history:
                for callback in watched:
                    callback.on_epoch_end(epoch.epoch - 1, {"val_loss": epoch.validation_loss})
            best.best = patience.best
            optimizer.learning_rate = rate

        books = callbacks.LambdaCallback(
            on_train_begin=relive, on_train_batch_end=self._after_batch, on_epoch_end=self._after_epoch
        )
        return [plateau, patience, best, callbacks.TerminateOnNaN(), books]

    def _after_batch(self, step: int, logs: object) -> None:
        done = len(self.history) * self.steps + step + 1
        self.out.progress(done, self.config.epochs * self.steps, "batch")

    def _after_epoch(self, place: int, logs: Mapping[str, Any]) -> None:
        number, loss = place + 1, float(logs["loss"])
        if not np.isfinite(loss):
            self.broken = loss, number
            return
        epoch = Epoch(
            epoch=number,
            train_loss=loss,
            validation_loss=float(logs["val_loss"]),
            validation_accuracy=float(logs["val_accuracy"]),
            learning_rate=float(self.trainer.optimizer.learning_rate),
        )
        self.history.append(epoch)
        self._save()
        self.out.progress(number, self.config.epochs, "epoch", **epoch.model_dump(exclude={"epoch"}))

    def _file(self, what: str, epoch: int) -> Any:
        return self.out.folder / f"{what}-{epoch:04d}.weights.h5"

    def _save(self) -> None:
        """Write the weights and the optimizer, then the list that names them, then remove what nothing names."""
        last = self._file("last", len(self.history))
        self.trainer.save_weights(last)
        named = {last, self._file("best", self.best_epoch)} if self.best_epoch else {last}
        for path in named:
            flush(path)
        write_whole(self.state, json.dumps([epoch.model_dump(mode="json") for epoch in self.history]))
        for path in self.out.folder.glob("*.weights.h5"):
            if path not in named:
                path.unlink()

    def _resume(self) -> None:
        if not self.state.exists():
            return
        self.history = [Epoch.model_validate(epoch) for epoch in json.loads(self.state.read_text("utf-8"))]
        self.trainer.optimizer.build(self.trainer.trainable_variables)
        self.trainer.load_weights(self._file("last", len(self.history)))

"""What users train that is not float32 throughout, and where they get their settings from."""

import os

import jax
import jax.numpy as jnp
import model
import numpy as np
import optax


class Double(model.Net):
    """Parameters in float64; the module asks JAX for that."""

    def init(self, key):
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float64), super().init(key))


class Complex(model.Net):
    """A spectral layer."""

    def init(self, key):
        return {**super().init(key), "modes": jnp.ones(3, jnp.complex64)}


class Late(model.Net):
    """Sets a variable of JAX's in ``task()``, which is too late."""

    def __init__(self):
        os.environ["JAX_ENABLE_X64"] = "1"


class Environment(model.Net):
    """Has settings from the environment, one of them while it is traced, and data from a file that
    it opens when it is asked for the first batch."""

    def optimizer(self):
        return optax.adam(float(os.environ.get("LR", "1e-3")))

    def batches(self, *, shard, shards, seed):
        return Read(shard, seed)

    def loss(self, params, batch):
        return super().loss(params, batch) * float(os.environ.get("SCALE", "1"))


class Read(model.Rows):
    def next(self):
        x, y = super().next()
        return x + np.loadtxt("shift.txt", dtype="float32"), y


class Many(model.Net):
    """More than a thousand small tensors."""

    def init(self, key):
        return {**super().init(key), **{f"bias_{n}": jnp.zeros(1) for n in range(1100)}}


class Drawn(model.Rows):
    """Its position is the state of a random number generator: 128-bit numbers, tuples."""

    def __init__(self, shard, seed):
        super().__init__(shard, seed)
        self.random = np.random.Generator(np.random.PCG64([seed, shard]))
        self.python = __import__("random").Random(seed)

    def next(self):
        x = self.random.normal(size=(self.rows, 4)).astype("float32")
        return x * self.python.uniform(0.9, 1.1), np.sin(x.sum(1))

    def state(self):
        return {"numpy": self.random.bit_generator.state, "python": self.python.getstate()}

    def restore(self, state):
        self.random.bit_generator.state = state["numpy"]
        self.python.setstate(state["python"])


class Random(model.Net):
    def batches(self, *, shard, shards, seed):
        return Drawn(shard, seed)


class Average(model.Net):
    """Averages its weights, with a count of the steps that corrects the average."""

    def init_state(self, key):
        return {"mean": jnp.zeros(8), "count": jnp.zeros((), jnp.int32)}

    def loss(self, params, batch, state):
        mean = 0.9 * state["mean"] + 0.1 * jax.lax.stop_gradient(params["out"])
        return super().loss(params, batch), {"mean": mean, "count": state["count"] + 1}

    def evaluate(self, params, state):
        mean = state["mean"] / (1 - 0.9 ** state["count"])
        return float(super().loss({**params, "out": mean}, model.Rows(999, 0, rows=64).next()))


class Search(model.Net):
    """An optimizer that asks for the loss at other parameters."""

    def optimizer(self):
        return optax.lbfgs()


def task(kind):
    if kind == "double":
        jax.config.update("jax_enable_x64", True)
    kinds = {each.__name__.lower(): each for each in model.Net.__subclasses__()}
    return kinds[kind]()

"""A loss that calls a function of this host. It is told what makes it hang, before it may."""

import jax
import jax.numpy as jnp
import numpy as np
from model import Net


def spectrum(x):
    return np.abs(np.fft.fft(np.asarray(x))).astype("float32")


class Task(Net):
    def loss(self, params, batch):
        x, y = batch
        found = jax.pure_callback(spectrum, jax.ShapeDtypeStruct(x.shape, jnp.float32), x)
        return super().loss(params, (jax.lax.stop_gradient(found), y))


def task():
    return Task()

"""Parameters that are no pytree of arrays are refused by the name of a leaf."""

import jax
import jax.numpy as jnp
import pytest

from ddloco.workers.parameters import shapes_and_names
from ddloco.workers.task import TaskError


@jax.tree_util.register_pytree_with_keys_class
class Module:
    """Like a module of Equinox that is not filtered: what it was made of are leaves, too."""

    def __init__(self, **leaves):
        self.leaves = leaves

    def tree_flatten_with_keys(self):
        keys = [jax.tree_util.GetAttrKey(name) for name in self.leaves]
        return [*zip(keys, self.leaves.values(), strict=True)], tuple(self.leaves)

    @classmethod
    def tree_unflatten(cls, names, leaves):
        return cls(**dict(zip(names, leaves, strict=True)))


@pytest.mark.parametrize(
    ("leaf", "said"),
    [
        (jax.nn.relu, "'layers/1/what' is no array but the "),
        (lambda x: x, "the function <lambda>"),
        ("same", "the str 'same'"),
        (object(), "the object <object object"),
    ],
)
def test_a_leaf_that_is_no_array_is_named(leaf, said):
    """With what to do about it; the rest of the tree is right."""

    def init(key):
        good, bad = Module(w=jax.random.normal(key, (2,))), Module(w=jnp.ones(2), what=leaf)
        return Module(layers=[good, bad])

    with pytest.raises(TaskError, match="init") as caught:
        shapes_and_names(init, 0)
    assert said in str(caught.value)
    assert "eqx.filter(net, eqx.is_inexact_array)" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_has_no_leaf_there_is_fine():
    """None is no leaf, and numbers are arrays."""
    shapes, names = shapes_and_names(lambda key: Module(w=1.0, bias=None, n=jnp.ones(3)), 0)

    assert ["w", "n"] == names
    assert [(), (3,)] == [leaf.shape for leaf in jax.tree.leaves(shapes)]

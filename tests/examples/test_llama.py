"""The Llama example: its text, its model, and the folder that transformers loads."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ddloco.api.model_folder import write_model_folder
from ddloco.workers.task import load_task
from examples import llama, llama_tokenizer


def made(**options):
    """The smallest model, and parameters that are no longer the first ones."""
    task = load_task("examples.llama:task", {"size": "tiny", **options})
    params = task.init(jax.random.key(3))
    noise = iter(jax.random.split(jax.random.key(4), 99))
    return task, jax.tree.map(lambda a: a + 0.3 * jax.random.normal(next(noise), a.shape), params)


def named(params):
    """The parameters by name, as a run's model file has them."""
    paths, _ = jax.tree_util.tree_flatten_with_path(params)
    keystr = jax.tree_util.keystr
    return {keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in paths}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """The file of a small tokenizer of the example's own text."""
    pytest.importorskip("tokenizers")
    path = tmp_path_factory.mktemp("llama") / "tokenizer.json"
    llama_tokenizer.make(path, vocabulary=300, bytes_max=20_000)
    return path


@pytest.mark.slow
def test_it_learns():
    """Thirty steps of AdamW lower the loss on the same batches."""
    task, _ = made()
    params = task.init(jax.random.key(0))
    optimizer = optax.adamw(1e-2)
    moments = optimizer.init(params)
    stream = task.batches(shard=0, shards=2, seed=0)

    @jax.jit
    def step(params, moments, batch):
        loss, gradient = jax.value_and_grad(task.loss)(params, batch)
        updates, moments = optimizer.update(gradient, moments, params)
        return optax.apply_updates(params, updates), moments, loss

    losses = []
    for _ in range(30):
        params, moments, loss = step(params, moments, stream.next())
        losses.append(float(loss))
    assert losses[0] == pytest.approx(np.log(256), abs=0.5)
    assert losses[-1] < losses[0] - 1


def test_a_token_sees_only_what_precedes_it():
    """Changing the last token changes no score before it."""
    task, params = made()
    tokens = jnp.arange(12)[None]
    before, after = (task.logits(params, tokens.at[0, -1].set(last)) for last in (5, 200))

    np.testing.assert_array_equal(before[:, :-1], after[:, :-1])
    assert float(jnp.abs(before[:, -1] - after[:, -1]).max()) > 0.1


def test_its_folder_has_the_names_of_transformers(tmp_path):
    """A tied head is not written twice; all else has its place."""
    task, params = made(tied=True)
    write_model_folder(tmp_path / "hf", named(params), "here", lambda: task)

    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["tie_word_embeddings"] is True
    assert {"config.json", "model.safetensors"} == {p.name for p in (tmp_path / "hf").iterdir()}


@pytest.mark.parametrize(
    "options", [{"tied": True}, {"tied": False, "theta": 500.0}], ids=["tied", "head"]
)
def test_transformers_computes_the_same_logits(options, tmp_path):
    """In float32 they differ by less than 1e-4, whatever the head and the rotary base are."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    task, params = made(**options)
    write_model_folder(tmp_path / "hf", named(params), "here", lambda: task)
    tokens = np.random.default_rng(0).integers(0, 256, (2, 32))

    model, said = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "hf", dtype=torch.float32, output_loading_info=True
    )
    assert not said["missing_keys"]
    assert not said["unexpected_keys"]
    with torch.no_grad():
        theirs = model.eval()(torch.as_tensor(tokens)).logits.numpy()
    ours = np.asarray(task.logits(params, jnp.asarray(tokens)))
    assert np.abs(ours).max() > 1
    assert np.abs(ours - theirs).max() < 1e-4


def test_a_tokenizer_of_the_user_makes_the_tokens(tokenizer):
    """The text is what the file's tokens stand for, and windows resume."""
    task = load_task("examples.llama:task", {"size": "tiny", "tokenizer": str(tokenizer)})
    stream = task.batches(shard=1, shards=2, seed=7)
    stream.next()
    state = stream.state()
    batch = stream.next()
    stream.restore(state)

    np.testing.assert_array_equal(batch, stream.next())
    said = llama.tokenizer_of(str(tokenizer)).decode([int(token) for token in batch[0]])
    assert said.strip()
    assert said.strip("\ufffd").encode() in llama.text(held_out=False).tobytes()
    assert task.vocabulary == 300
    assert 0 < float(task.loss(task.init(jax.random.key(0)), batch)) < 20


def test_the_tokenizer_travels_with_the_model(tokenizer, tmp_path):
    """Transformers finds it in the folder, and it makes the same tokens."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    task, params = made(tokenizer=str(tokenizer))
    write_model_folder(tmp_path / "hf", named(params), "here", lambda: task)

    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "hf")
    said = "def spam(eggs):\n    return eggs\n"
    assert theirs(said).input_ids == llama.tokenizer_of(str(tokenizer)).encode(said).ids

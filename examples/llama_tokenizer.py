"""Makes a tokenizer for `examples/llama.py` from its training text, with the package `tokenizers`.

    python -m examples.llama_tokenizer tokenizer.json
    ddloco run examples/llama.toml --set task.tokenizer=tokenizer.json --dir runs/llama

Any other file of that package does, too. On several hosts each needs the same file.
"""

import importlib
import sys
from pathlib import Path

from examples.tiny_gpt import text


def make(path: Path, vocabulary: int = 1024, bytes_max: int = 1 << 20) -> None:
    """Write a tokenizer of byte pairs.

    Args:
        path: the file.
        vocabulary: how many tokens there are.
        bytes_max: how much of the text is looked at.
    """
    try:
        tokenizers = importlib.import_module("tokenizers")
    except ImportError:
        sys.exit("a tokenizer needs the package of that name: pip install tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    lines = text(held_out=False)[:bytes_max].tobytes().decode("utf-8", "replace").splitlines()
    made.train_from_iterator((f"{line}\n" for line in lines), trainer)
    made.save(str(path))


if __name__ == "__main__":
    make(Path(sys.argv[1] if len(sys.argv) > 1 else "tokenizer.json"))

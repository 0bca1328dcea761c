"""The models of the campaign. Those with random weights are small ones of a family whose embedding and output matrix are
replaced, so that each answer depends on its whole context: with the embedding as the output matrix, random weights repeat
the last token, whatever keys, values and states hold."""
import math
import os
import random
import struct
import subprocess
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(FOLDER, "..", "python"))
import bramble
import gguf

BARD = os.path.join(bramble.ROOT, "packaging", "demo", "bard-q8_0.gguf")
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
# Numbers of types in GGUF files: weights, and lists of 32-bit integers.
F32, INT32, ARRAY = 0, 5, 9
# Special tokens, which no answer has, and the tokens of bytes behind them.
SPECIAL, BYTES = range(3), range(3, 259)


class Family:
    """`form`: the format of the other matrices. `width`: the standard deviation of the embedding's weights, so that the
    embedding is about as large as the sum of the layers; `logits`: that of the logits before the model's own factor."""

    def __init__(self, form, width, logits=3.0):
        self.form, self.width, self.logits = form, width, logits


FAMILIES = {
    # Products with F32 need no int8 activations, whose rounding another number of ranks may change, and the text with it.
    "llama": Family("f32", 1.2),
    "qwen35": Family("q8_0", 1.2),
    # The family multiplies the embedding by 12, what layers add by 0.22, and the logits by a half.
    "granitehybrid": Family("q8_0", 0.04, 6.0),
}


def can_make(name):
    """Whether the program that makes a model is built."""
    return name == "bard" or os.path.exists(os.path.join(bramble.RELEASE, "family"))


def path(name):
    """Path of a tiny model, which is made only once."""
    if name == "bard":
        return BARD
    folder = os.path.join(bramble.ROOT, "target", "chaos", name)
    made = os.path.join(folder, f"{name}-varied.gguf")
    if not os.path.exists(made):
        os.makedirs(folder, exist_ok=True)
        subprocess.run([bramble.program("family"), "make", folder, "--only", f"{name}-ordinary"], check=True, stdout=subprocess.DEVNULL)
        # An incomplete file must not look like a complete one.
        replaced(FAMILIES[name], gguf.File(os.path.join(folder, f"{name}-ordinary-{FAMILIES[name].form}.gguf")), made + ".part")
        os.rename(made + ".part", made)
    return made


def replaced(family, base, made):
    """Writes a model with another embedding, and with an output matrix of its own."""
    columns, tokens = next(dimensions for name, dimensions, *_ in base.tensors if name == EMBEDDING)
    kept = [(name, dimensions, kind, base.weights(index)) for index, (name, dimensions, kind, _) in enumerate(base.tensors) if name not in (EMBEDDING, OUTPUT)]
    spread = family.logits / math.sqrt(columns)
    new = [
        (EMBEDDING, [columns, tokens], F32, rows(EMBEDDING, columns, [family.width] * tokens)),
        (OUTPUT, [columns, tokens], F32, rows(OUTPUT, columns, [spread if has_own_text(token) else 0 for token in range(tokens)])),
    ]
    suppressed = struct.pack(f"<IQ{len(SPECIAL)}i", INT32, len(SPECIAL), *SPECIAL)
    gguf.write(made, {**base.metadata, "tokenizer.ggml.suppress_tokens": (ARRAY, suppressed)}, kept + new, base.alignment)


def rows(name, columns, spreads):
    """Random rows with these standard deviations."""
    chance = random.Random(name)
    return b"".join(struct.pack(f"<{columns}f", *(chance.gauss(0, spread) for _ in range(columns))) for spread in spreads)


def has_own_text(token):
    """Whether a token is a visible text that no other token is. Answers consist of these, so that a text shows its tokens."""
    byte = token - BYTES.start
    return token >= BYTES.stop or token in BYTES and 0x21 <= byte < 0x7f and not chr(byte).islower()

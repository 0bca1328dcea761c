#!/usr/bin/env python3
"""A small draft model trained on the demo model's own text: the demo model writes answers, a llama of one layer and half
its width learns them by gradient descent, and its file (Q8_0, the same vocabulary) is measured beside the demo model:
accepted tokens, and answers with and without it, which have to be equal.

pip install numpy && cargo build --release --locked --workspace && bench/scripts/speed/trained_draft.py
[--answers 1500] [--steps 1500] [--rounds 5] [--out FILE] [--json]

Exit code 1 if an answer differs, or if no more tokens are accepted than of prompt lookup alone. Training takes some minutes
on two cores; the file is kept and not trained again.
"""
import asyncio
import os
import shutil
import struct
import sys

import numpy

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble
import client
import gguf

DEMO = os.path.join(bramble.ROOT, "packaging", "demo", "bard-q8_0.gguf")
WIDTH, INNER, HEADS, LENGTH = 128, 256, 4, 192
HEAD, BASE, EPSILON = WIDTH // HEADS, 10000.0, 1e-5
BATCH, RATE, TOGETHER = 12, 4e-3, 16
OPENINGS = ["ROMEO:", "JULIET:\n", "KING HENRY:\nWhat", "To be, or", "Now is the winter", "Enter the", "My lord, I", "FIRST CITIZEN:\nWe are",
            "HAMLET:\nO", "LADY MACBETH:\n", "The", "And", "SCENE II.", "What say", "O, she", "Good", "CLOWN:\n", "DUKE:\nIf", "Sir,", "Thou"]
# Speeds are those of a model that fits the caches: a proposal saves it little.
SETTINGS = "packed_shards = false\nkv_store = \"off\"\nkv_copies = false\nmdns = false\n"


async def texts(host, count):
    """Token ids `[count, LENGTH]` of answers of the demo model, with their prompts."""
    gate, found = asyncio.Semaphore(TOGETHER), []

    async def write(seed):
        body = {"prompt": OPENINGS[seed % len(OPENINGS)], "n_predict": LENGTH, "temperature": 0.8, "seed": seed, "ignore_eos": True, "return_tokens": True}
        async with gate:
            prompt = await client.ask(host, "POST", "/tokenize", {"content": body["prompt"], "add_special": True})
            answer = await client.ask(host, "POST", "/completion", body)
        if answer.status != 200 or prompt.status != 200:
            sys.exit(f"{host}: status {answer.status}, {answer.error or answer.body[:300]}")
        found.append((prompt.json()["tokens"] + answer.json()["tokens"])[:LENGTH])

    await asyncio.gather(*(write(seed) for seed in range(count)))
    return numpy.array(found)


def normed(x, gain):
    scale = 1 / numpy.sqrt((x * x).mean(-1, keepdims=True) + EPSILON)
    return x * scale * gain, scale


def normed_back(change, x, scale, gain):
    """Gradients of the input and of the gain of an RMS norm."""
    inner = change * gain
    return scale * (inner - x * scale * scale * (inner * x).mean(-1, keepdims=True)), (change * x * scale).reshape(-1, WIDTH).sum(0)


def turned(x, angles, sign):
    """Rotates adjacent pairs of `[batch, head, token, HEAD]`."""
    cos, sin = numpy.cos(angles), sign * numpy.sin(angles)
    out = numpy.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return out


def heads(x):
    return x.reshape(len(x), -1, HEADS, HEAD).transpose(0, 2, 1, 3)


def joined(x):
    return x.transpose(0, 2, 1, 3).reshape(len(x), -1, WIDTH)


def product_back(change, x, matrix):
    """Gradients of the input and of the matrix of `x @ matrix.T`."""
    return change @ matrix, change.reshape(-1, change.shape[-1]).T @ x.reshape(-1, x.shape[-1])


def loss(model, ids):
    """Mean cross entropy of the next tokens of `ids` `[batch, token]`, and its gradients."""
    inputs, wanted = ids[:, :-1], ids[:, 1:]
    count = inputs.shape[1]
    angles = numpy.arange(count)[:, None] * BASE ** (-numpy.arange(0, HEAD, 2) / HEAD)[None].astype(numpy.float32)
    angles = angles.astype(numpy.float32)
    x0 = model["token_embd"][inputs]
    h0, s0 = normed(x0, model["attn_norm"])
    q, k, v = (heads(h0 @ model[f"attn_{name}"].T) for name in "qkv")
    q, k = turned(q, angles, 1), turned(k, angles, 1)
    scores = q @ k.swapaxes(-1, -2) / numpy.float32(HEAD**0.5)
    scores += numpy.triu(numpy.full((count, count), -1e9, numpy.float32), 1)
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed = joined(weights @ v)
    x1 = x0 + mixed @ model["attn_output"].T
    h1, s1 = normed(x1, model["ffn_norm"])
    gate, up = h1 @ model["ffn_gate"].T, h1 @ model["ffn_up"].T
    sigmoid = 1 / (1 + numpy.exp(-gate))
    inner = gate * sigmoid * up
    x2 = x1 + inner @ model["ffn_down"].T
    h2, s2 = normed(x2, model["output_norm"])
    logits = h2 @ model["token_embd"].T
    logits -= logits.max(-1, keepdims=True)
    chances = numpy.exp(logits)
    chances /= chances.sum(-1, keepdims=True)
    at = (numpy.arange(len(ids))[:, None], numpy.arange(count)[None], wanted)
    value = -numpy.log(chances[at] + 1e-20).mean()

    chances[at] -= 1
    chances /= wanted.size
    grown = {}
    change, grown["token_embd"] = product_back(chances, h2, model["token_embd"])
    change, grown["output_norm"] = normed_back(change, x2, s2, model["output_norm"])
    of_inner, grown["ffn_down"] = product_back(change, inner, model["ffn_down"])
    of_gate, grown["ffn_gate"] = product_back(of_inner * up * sigmoid * (1 + gate * (1 - sigmoid)), h1, model["ffn_gate"])
    of_up, grown["ffn_up"] = product_back(of_inner * gate * sigmoid, h1, model["ffn_up"])
    more, grown["ffn_norm"] = normed_back(of_gate + of_up, x1, s1, model["ffn_norm"])
    change = change + more
    of_mixed, grown["attn_output"] = product_back(change, mixed, model["attn_output"])
    of_mixed = heads(of_mixed)
    of_v = weights.swapaxes(-1, -2) @ of_mixed
    of_weights = of_mixed @ v.swapaxes(-1, -2)
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdims=True)) / numpy.float32(HEAD**0.5)
    of_q, of_k = turned(of_scores @ k, angles, -1), turned(of_scores.swapaxes(-1, -2) @ q, angles, -1)
    of_h0 = 0
    for name, part in (("q", of_q), ("k", of_k), ("v", of_v)):
        of_input, grown[f"attn_{name}"] = product_back(joined(part), h0, model[f"attn_{name}"])
        of_h0 = of_h0 + of_input
    more, grown["attn_norm"] = normed_back(of_h0, x0, s0, model["attn_norm"])
    numpy.add.at(grown["token_embd"], inputs.reshape(-1), (change + more).reshape(-1, WIDTH))
    return value, grown


def fresh(vocabulary, chance):
    matrix = lambda rows, columns, scale: (chance.standard_normal((rows, columns)) * scale).astype(numpy.float32)
    square = {f"attn_{name}": matrix(WIDTH, WIDTH, 0.08) for name in ("q", "k", "v", "output")}
    gains = {name: numpy.ones(WIDTH, numpy.float32) for name in ("attn_norm", "ffn_norm", "output_norm")}
    wide = {"ffn_gate": matrix(INNER, WIDTH, 0.08), "ffn_up": matrix(INNER, WIDTH, 0.08), "ffn_down": matrix(WIDTH, INNER, 0.05)}
    return {"token_embd": matrix(vocabulary, WIDTH, 0.05), **square, **gains, **wide}


def train(ids, vocabulary, steps, is_quiet):
    """Adam with a warm-up and a cosine (Kingma and Ba 2014, "Adam: a method for stochastic optimization")."""
    chance = numpy.random.default_rng(1)
    model = fresh(vocabulary, chance)
    first, second = ({name: numpy.zeros_like(values) for name, values in model.items()} for _ in range(2))
    mean = 0.0
    for step in range(1, steps + 1):
        value, grown = loss(model, ids[chance.integers(len(ids), size=BATCH)])
        mean = value if step == 1 else 0.98 * mean + 0.02 * value
        rate = RATE * min(step / 50, 1) * (0.05 + 0.95 * (1 + numpy.cos(numpy.pi * step / steps)) / 2)
        for name, values in model.items():
            first[name] = 0.9 * first[name] + 0.1 * grown[name]
            second[name] = 0.98 * second[name] + 0.02 * grown[name] ** 2
            values -= (rate * (first[name] / (1 - 0.9**step)) / (numpy.sqrt(second[name] / (1 - 0.98**step)) + 1e-9)).astype(numpy.float32)
        if step % 100 == 0 and not is_quiet:
            print(f"step {step}: cross entropy {mean:.3f}", flush=True)
    return model, float(mean)


def q8_0(matrix):
    """Blocks of 32: a scale as a half and 32 bytes."""
    blocks = matrix.reshape(-1, 32)
    scales = (numpy.abs(blocks).max(-1, keepdims=True) / 127).astype(numpy.float16)
    levels = numpy.rint(blocks / numpy.maximum(scales.astype(numpy.float32), 1e-12)).clip(-127, 127).astype(numpy.int8)
    return numpy.concatenate([scales.view(numpy.int8), levels], 1).tobytes()


def write(model, path):
    """Writes a file with the demo model's vocabulary."""
    demo = gguf.File(DEMO)
    number = lambda value: (gguf.UINT32, struct.pack("<I", value))
    metadata = {**demo.metadata, "general.name": gguf.string("Bard draft"), "general.description": gguf.string("Draft model trained on the text of Bard")}
    sizes = {"embedding_length": WIDTH, "block_count": 1, "feed_forward_length": INNER, "attention.head_count": HEADS, "attention.head_count_kv": HEADS}
    metadata.update({demo.key(key): number(value) for key, value in {**sizes, "rope.dimension_count": HEAD}.items()})
    tensors = []
    for name, values in model.items():
        whole = f"{name}.weight" if name in ("token_embd", "output_norm") else f"blk.0.{name}.weight"
        is_matrix = values.ndim == 2
        tensors.append((whole, values.shape[::-1], 8 if is_matrix else 0, q8_0(values) if is_matrix else values.tobytes()))
    gguf.write(path, metadata, tensors, demo.alignment)


def measure(daemons, draft, rounds):
    """Answers with and without proposals at two temperatures: of the draft model, if there is one, and of prompt lookup."""
    host, rows, differing = client.place(daemons[0]), [], 0
    more = ["--draft", draft] if draft else []
    bramble.generate(daemons, os.path.basename(DEMO), "To be", 2, "--topology", f"tp{len(daemons)}", *more)
    asyncio.run(client.until_healthy([host]))
    for temperature in (0, 0.8):
        ratios, accepted, proposed = [], 0, 0
        for turn in range(rounds * len(OPENINGS)):
            # Seeds that training has not seen.
            body = {"prompt": OPENINGS[turn % len(OPENINGS)], "max_tokens": 128, "temperature": temperature, "seed": (1 << 20) + turn, "ignore_eos": True}
            found = [client.completion(host, {**body, "speculative": speculative}) for speculative in (True, False)]
            differing += found[0]["choices"][0]["text"] != found[1]["choices"][0]["text"]
            timings = [one["timings"] for one in found]
            accepted, proposed = accepted + timings[0]["draft_n_accepted"], proposed + timings[0]["draft_n"]
            ratios.append(timings[1]["predicted_per_token_ms"] / timings[0]["predicted_per_token_ms"])
        rows.append({"ranks": len(daemons), "draft": bool(draft), "temperature": temperature, "accepted": accepted, "proposed": proposed, "ratio": bramble.median(ratios)})
    return rows, differing


def main():
    parser = bramble.parser(__doc__)
    parser.add_argument("--answers", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", default=os.path.join(bramble.ROOT, "target", "models", "bard-draft.gguf"))
    arguments = parser.parse_args()
    folder, name = os.path.split(os.path.abspath(arguments.out))
    os.makedirs(folder, exist_ok=True)
    shutil.copy(DEMO, folder)
    rows, missed, cross_entropy = [], [], None
    with bramble.Cluster(folder) as cluster:
        daemons = [cluster.add(f"pi{index + 1}", address, settings=SETTINGS) for index, address in enumerate(bramble.loopback(2))]
        if not os.path.exists(arguments.out):
            bramble.generate(daemons[:1], os.path.basename(DEMO), "To be", 2)
            asyncio.run(client.until_healthy([client.place(daemons[0])]))
            ids = asyncio.run(texts(client.place(daemons[0]), arguments.answers))
            model, cross_entropy = train(ids, gguf.File(DEMO).number_of("vocab_size"), arguments.steps, arguments.json)
            write(model, arguments.out)
        for count in (1, 2):
            found, differing = zip(*(measure(daemons[:count], draft, arguments.rounds) for draft in (None, name)))
            missed += [f"tp{count}: {sum(differing)} answers differ"] if sum(differing) else []
            for alone, row in zip(*found):
                rows += [alone, row]
                if row["accepted"] <= alone["accepted"]:
                    missed.append(f"tp{count}, temperature {row['temperature']}: {row['accepted']} accepted, {alone['accepted']} of prompt lookup alone")
                for one in () if arguments.json else (alone, row):
                    share = 100 * one["accepted"] / max(one["proposed"], 1)
                    print(f"tp{count}  temperature {one['temperature']:<3}  {'draft model and lookup' if one['draft'] else 'lookup alone':22}  "
                          f"{one['accepted']} of {one['proposed']} accepted ({share:.0f} %), {one['ratio']:.2f} times as fast")
    bramble.finish({"rows": rows, "cross_entropy": cross_entropy}, missed, arguments.json)


if __name__ == "__main__":
    bramble.command(main)

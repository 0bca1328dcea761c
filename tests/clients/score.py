#!/usr/bin/env python3
"""Clients that count, score and embed: openai's embeddings, lm-evaluation-harness (local-completions, with the tokenizer of
the server) and plain HTTP as programs for llama-server and vLLM use it, against two daemons. The score of the task is
compared with that of llama.cpp if llama-cpp-python is installed; --peer requires it. Run by .ci/clients.

cargo build --release --locked --workspace && tests/clients/score.py [--peer]
"""
import json
import math
import os
import sys
import tempfile
import urllib.request

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="lm-eval-")

MODEL = "bard-q8_0.gguf"
MODELS = os.path.join(bramble.ROOT, "packaging", "demo")
TASKS = os.path.join(bramble.ROOT, "tests", "clients", "lm_eval")
SAMPLES = 104
IS_COMPARED = "--peer" in sys.argv[1:]


def post(url, path, **body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def evaluated(model, **more):
    """The samples and the accuracy of the task."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    os.chdir(TASKS)
    manager = TaskManager(include_path=TASKS, include_defaults=False)
    found = lm_eval.simple_evaluate(model=model, tasks=["verse"], task_manager=manager, log_samples=True, bootstrap_iters=0, **more)
    samples = found["samples"]["verse"]
    assert len(samples) == SAMPLES, len(samples)
    return sorted(samples, key=lambda sample: sample["doc_id"]), found["results"]["verse"]["acc,none"]


def deviation(accuracy):
    """The standard error of an accuracy."""
    return math.sqrt(accuracy * (1 - accuracy) / (SAMPLES - 1))


def score_task(url):
    """lm-evaluation-harness finds the tokenizer of the server and scores each choice by its log probabilities."""
    arguments = {"base_url": url + "/v1/completions", "model": MODEL, "num_concurrent": 2, "max_retries": 1, "max_length": 256}
    samples, accuracy = evaluated("local-completions", model_args=arguments, batch_size=4)
    for sample in samples[:8]:
        for (context, continuation), score in zip(sample["arguments"], sample["filtered_resps"], strict=True):
            assert math.isclose(score[0], by_hand(url, context, continuation), rel_tol=1e-4), (context, continuation, score)
    assert accuracy >= 0.5, f"the model of plays must find most ends of its lines among four: {accuracy}"
    print(f"ok     score_task: accuracy {accuracy:.3f} ± {deviation(accuracy):.3f}", flush=True)
    return compare(samples, accuracy)


def compare(samples, accuracy):
    """The accuracy of llama.cpp with the same file must be within two standard errors; the last line of this check."""
    try:
        from peer import LlamaCpp
    except ImportError as error:
        assert not IS_COMPARED, f"--peer needs llama-cpp-python: {error}"
        return f"SKIPPED: no llama.cpp to compare with ({error})"
    others, other = evaluated(LlamaCpp(os.path.join(MODELS, MODEL)))
    mine, theirs = ([score[0] for sample in list for score in sample["filtered_resps"]] for list in (samples, others))
    furthest = max(abs(a - b) for a, b in zip(mine, theirs, strict=True))
    mean = sum(mine) / len(mine) - sum(theirs) / len(theirs)
    most = 2 * deviation(other)
    assert abs(accuracy - other) <= most, f"accuracy {accuracy:.3f}, llama.cpp {other:.3f}: more than {most:.3f} apart"
    return (
        f"llama.cpp {other:.3f} ± {deviation(other):.3f}, at most {most:.3f} apart; "
        f"log probabilities of {len(mine)} choices: {mean:+.4f} on average, at most {furthest:.4f} apart"
    )


def by_hand(url, context, continuation):
    """The log probability of a continuation, from one token after the other."""
    ids = post(url, "/tokenize", prompt=context + continuation, add_special_tokens=False)["tokens"]
    begin = post(url, "/tokenize", prompt=context, add_special_tokens=False)["count"]
    scored = post(url, "/v1/completions", prompt=ids, echo=True, logprobs=1, max_tokens=0)["choices"][0]["logprobs"]
    assert len(scored["token_logprobs"]) == len(ids), scored
    return sum(scored["token_logprobs"][begin:])


def count_tokens(url):
    """A text keeps its tokens through /tokenize, /detokenize, /completion and the usage of a completion."""
    text = "ROMEO: But soft! what light?"
    ids = post(url, "/tokenize", content=text, add_special=True)["tokens"]
    assert post(url, "/tokenize", prompt=text)["tokens"] == ids
    assert text in post(url, "/detokenize", tokens=ids)["content"]
    answer = post(url, "/completion", prompt=ids, n_predict=4, temperature=0, return_tokens=True)
    assert answer["tokens_evaluated"] == len(ids) and len(answer["tokens"]) == 4, answer
    messages = [{"role": "user", "content": text}]
    counted = post(url, "/v1/messages/count_tokens", model=MODEL, messages=messages)["input_tokens"]
    chat = post(url, "/v1/chat/completions", messages=messages, max_tokens=1)
    assert counted == chat["usage"]["prompt_tokens"], (counted, chat)
    prompt = post(url, "/apply-template", messages=messages)["prompt"]
    assert text in prompt, prompt
    return f"{len(ids)} tokens"


def embed(url):
    """The official client asks for base64 by itself; floats and shorter vectors have the same direction."""
    import openai

    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=60)
    texts = ["But soft! what light?", "We are the people."]
    packed = [one.embedding for one in client.embeddings.create(model=MODEL, input=texts).data]
    floats = [one.embedding for one in client.embeddings.create(model=MODEL, input=texts, encoding_format="float").data]
    assert packed == floats or all(math.isclose(a, b, rel_tol=1e-6) for one, two in zip(packed, floats) for a, b in zip(one, two))
    assert all(math.isclose(math.hypot(*vector), 1.0, rel_tol=1e-4) for vector in packed), packed
    short = client.embeddings.create(model=MODEL, input=texts[0], dimensions=8).data[0].embedding
    scale = math.hypot(*packed[0][:8])
    assert all(math.isclose(a, b / scale, rel_tol=1e-4, abs_tol=1e-6) for a, b in zip(short, packed[0][:8])), short
    named = post(url, "/api/embed", model=MODEL, input=texts)["embeddings"]
    assert len(named) == 2 and len(named[0]) == len(packed[0]), named
    return f"{len(packed[0])} values"


def main():
    with bramble.Cluster(MODELS) as cluster:
        addresses = bramble.loopback(2)
        daemons = [cluster.add(f"pi{index + 1}", address, settings=bramble.QUIET) for index, address in enumerate(addresses)]
        bramble.generate(daemons, MODEL, "ROMEO:", 2, "--topology", "tp2")
        url = f"http://{addresses[0].rsplit(':', 1)[0]}:9980"
        for one in (count_tokens, embed, score_task):
            print(f"ok     {one.__name__}: {one(url)}", flush=True)


if __name__ == "__main__":
    bramble.command(main)

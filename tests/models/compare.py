"""Compares small models of every family with llama.cpp: teacher-forced logits and greedy ids in F32, Q8_0, Q4_K_M and
MXFP4, of one llama model also in IQ3_XXS, IQ3_S, IQ2_XXS, IQ2_XS and IQ2_S, on tp1, tp2, tp3, tp4, pp2 and pp2-tp2.

    pip install llama-cpp-python==0.3.36 numpy
    python3 tests/models/compare.py [FOLDER] [--only FAMILY] [--keep tests/fixtures/families]

`--keep` stores the last logits of the unquantised files for `.ci/models`, which needs no llama.cpp.
"""
import argparse
import contextlib
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile

import llama_cpp
import numpy
from llama_cpp import llama_cpp_ext

PROGRAM = ["cargo", "run", "--quiet", "--release", "--locked", "-p", "bramble-tests", "--bin", "family", "--"]

# Models for embeddings alone.
WITHOUT_LOGITS = ["gemma-embedding"]


def theirs(path, tokens, greedy):
    """Logits after each token of the prompt, and the ids that follow it; None if the model has no logits."""
    with open(os.devnull, "w") as null, contextlib.redirect_stderr(null):
        model = llama_cpp.Llama(
            str(path), n_ctx=512, n_batch=512, n_threads=2, logits_all=True, verbose=False, type_k=0, type_v=0
        )
    if model.metadata["general.architecture"] in WITHOUT_LOGITS:
        model.close()
        return None, None
    model.eval(tokens)
    logits = numpy.array(model.scores[: len(tokens)], dtype=numpy.float32)
    ids = []
    for _ in range(greedy):
        ids.append(int(numpy.argmax(model.scores[model.n_tokens - 1])))
        model.eval(ids[-1:])
    model.close()
    return logits, numpy.array(ids, dtype=numpy.uint32)


def embedding(path, tokens):
    """The embedding of the prompt, of length 1, pooled as the file's keys demand; None if they demand no pooling."""
    with open(os.devnull, "w") as null, contextlib.redirect_stderr(null):
        model = llama_cpp.Llama(
            str(path), n_ctx=512, n_batch=512, n_ubatch=512, n_threads=2, embedding=True, verbose=False, type_k=0, type_v=0
        )
    found = None
    if model.pooling_type() != llama_cpp.LLAMA_POOLING_TYPE_NONE:
        model._batch.reset()
        model._batch.add_sequence(tokens, 0, False)
        model._ctx.decode(model._batch)
        pointer = llama_cpp.llama_get_embeddings_seq(model.ctx, 0)
        found = numpy.array(pointer[: model.n_embd()], dtype=numpy.float64)
        found = (found / numpy.linalg.norm(found)).astype(numpy.float32)
    model.close()
    return found


def predicted(path, tokens):
    """Logits of the file's predictor after each token of the prompt, if it has one: each token is joined with the
    model's hidden state before it, the first one with zeros."""
    library = llama_cpp.llama_cpp
    parameters = library.llama_model_default_params()
    parameters.load_mtp = True
    model = library.llama_model_load_from_file(str(path).encode(), parameters)
    if library._lib.llama_model_n_layer_nextn(ctypes.c_void_p(model)) == 0:
        library.llama_model_free(model)
        return None
    length, vocabulary = library.llama_model_n_embd(model), library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))

    def logits(kind, states, other=None):
        """Decodes the prompt in a new context of this kind."""
        parameters = library.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = 512, 512, 512
        parameters.type_k, parameters.type_v = 0, 0
        parameters.flash_attn_type = library.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.ctx_type, parameters.ctx_other = kind, other
        context = library.llama_init_from_model(model, parameters)
        llama_cpp_ext.llama_set_embeddings_nextn(context, True, False)
        batch = library.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index], batch.pos[index], batch.logits[index] = token, index, 1
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
        if states is not None:
            batch.embd = states.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        if library.llama_decode(context, batch) != 0:
            raise ValueError("decoding fails")
        found = numpy.ctypeslib.as_array(library.llama_get_logits(context), (len(tokens), vocabulary)).copy()
        return context, found

    context, _ = logits(library.LLAMA_CONTEXT_TYPE_DEFAULT, None)
    states = numpy.ctypeslib.as_array(llama_cpp_ext.llama_get_embeddings_nextn(context), (len(tokens), length)).copy()
    states = numpy.ascontiguousarray(numpy.concatenate([numpy.zeros_like(states[:1]), states[:-1]]))
    _, found = logits(library.LLAMA_CONTEXT_TYPE_MTP, states, context)
    return found


def main():
    parser = argparse.ArgumentParser(description="Compare small models of every family with llama.cpp")
    parser.add_argument("folder", nargs="?", help="where to write models and logits (default: a temporary folder)")
    parser.add_argument("--keep", help="store the last logits of the unquantised files here")
    parser.add_argument("--only", default="", help="only models whose names begin with this")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(arguments.folder or temporary)
        subprocess.run(PROGRAM + ["make", str(folder), "--only", arguments.only], check=True)
        first, second = (folder / "tokens.txt").read_text().split("\n")[:2]
        for path in sorted(folder.glob(f"{arguments.only}*.gguf")):
            try:
                logits, ids = theirs(path, [int(token) for token in first.split()], int(second))
            except ValueError as error:
                sys.exit(f"llama.cpp cannot load {path.name}: {error}")
            if logits is not None:
                logits.tofile(folder / f"{path.stem}.logits.f32")
                ids.tofile(folder / f"{path.stem}.ids.u32")
            if path.stem.endswith("-f32") and "+predictor" in path.stem:
                predicted(path, [int(token) for token in first.split()]).tofile(folder / f"{path.stem}.predicted.f32")
            pooled = embedding(path, [int(token) for token in first.split()])
            if pooled is not None:
                pooled.tofile(folder / f"{path.stem}.embedding.f32")
        keep = ["--keep", arguments.keep] if arguments.keep else []
        sys.exit(subprocess.run(PROGRAM + ["compare", str(folder), "--only", arguments.only] + keep).returncode)


main()

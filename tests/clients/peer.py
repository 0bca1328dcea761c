"""llama.cpp as a model of lm-evaluation-harness, through llama-cpp-python: the same file, the same task, no daemon."""
import numpy
from lm_eval.api.model import TemplateLM
from llama_cpp import Llama

CONTEXT = 256


class LlamaCpp(TemplateLM):
    """Scores continuations by the logits of all tokens; the other requests of the harness are not needed here."""

    def __init__(self, path):
        super().__init__()
        self.model = Llama(path, n_ctx=CONTEXT, n_threads=2, logits_all=True, verbose=False)

    @property
    def eot_token_id(self):
        return self.model.token_eos()

    def tok_encode(self, string, **_):
        return self.model.tokenize(string.encode(), add_bos=False, special=True)

    def _loglikelihood_tokens(self, requests, **_):
        return [self._score(context, continuation) for _, context, continuation in requests]

    def _score(self, context, continuation):
        self.model.reset()
        self.model.eval([*context, *continuation][:-1])
        logits = self.model.scores[len(context) - 1 : len(context) + len(continuation) - 1].astype(numpy.float64)
        highest = logits.max(axis=1)
        of_all = highest + numpy.log(numpy.exp(logits - highest[:, None]).sum(axis=1))
        found = logits[range(len(continuation)), continuation] - of_all
        return float(found.sum()), list(logits.argmax(axis=1)) == continuation

    def loglikelihood_rolling(self, requests, **_):
        raise NotImplementedError

    def generate_until(self, requests, **_):
        raise NotImplementedError

//! The two fixed prompts. Their answers are compared, so they never change.

/// A prompt of the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedPrompt {
    /// Its name in reports.
    pub name: &'static str,
    /// Its text, used without a chat template.
    pub text: &'static str,
    /// Its tokens are cut to this length.
    pub tokens_max: usize,
    /// Tokens of the answer.
    pub answer: u32,
}

/// A short prompt with a longer answer, which shows the speed of decode.
pub const STORY: FixedPrompt =
    FixedPrompt { name: "story", text: "Once upon a time, in a small village,", tokens_max: 64, answer: 64 };

/// A long prompt with a short answer, which shows the speed of prefill.
pub const ESSAY: FixedPrompt = FixedPrompt { name: "essay", text: ESSAY_TEXT, tokens_max: 512, answer: 32 };

/// Both, in the order in which they are answered: the short one also warms up the topology.
pub const PROMPTS: [FixedPrompt; 2] = [STORY, ESSAY];

/// More than 512 tokens in every common vocabulary.
const ESSAY_TEXT: &str = "\
A cluster of small computers is a good teacher. Every machine in it is slow, cheap and easy to understand, and yet the \
machines together can do work that none of them could do alone. The first lesson is about memory. A language model of \
eight billion weights does not fit into the memory of a small machine unless its weights are stored in four bits each, \
and even then almost all of that memory is read again for every word of an answer. The speed of the answer is \
therefore the speed of the memory, and a faster processor changes nothing. Two machines that hold one half of the \
weights each read their halves at the same time, and the answer arrives almost twice as fast. The second lesson is \
about the network. After every layer of the model the machines have to add up what each of them has computed, and none \
of them can continue before it has the sum. The messages are short, only a few thousand bytes, so that the bandwidth \
of the network hardly matters. What matters is the time that a message needs from one program to the other: through \
the system of the sender, the cable, the switch, another cable, and the system of the receiver. A tenth of a \
millisecond is short for a person, but a model of thirty-two layers adds sixty-four of them to every word. The third \
lesson is about the slowest member. A machine that overheats lowers its clock, a weak power supply has the same \
effect, and a damaged cable loses packets that must be sent again. All the other machines wait for the slow one, so \
the whole cluster runs at the speed of its slowest part. People who operate such a cluster learn to measure first and \
to guess later. A slow card that delays the first read of a model, or a fan that has stopped, looks harmless on one \
machine, and yet each of the others pays for it with every single word of every answer. The fourth lesson is about \
failure. A single machine fails rarely, but a cluster of eight fails eight times as often, and someone will one day \
trip over a cable while the cluster is in the middle of a sentence. The other machines have to notice the failure \
quickly, agree on which of them are left, divide the work again, and continue the sentence at the very word where it \
stopped, as if nothing had happened. None of these lessons is new. They are the same in the largest data centres of \
the world, where a hundred thousand processors work on one model. But there, one needs a badge to see the machines, \
and here they stand on the desk, blink with their green lights, and can be unplugged by hand. In short, the most \
important things to learn from a small cluster are";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn essay_is_longer_than_its_tokens_in_every_common_vocabulary() {
        // Common vocabularies need about 0.22 tokens for a byte of English, the most economical ones 0.2.
        assert!(ESSAY.text.len() / 5 > ESSAY.tokens_max, "{} bytes", ESSAY.text.len());
        assert!(PROMPTS.iter().all(|prompt| prompt.text.is_ascii() && !prompt.text.ends_with(' ')));
    }
}

//! Everything that is tested from outside the crates, as one binary: it links once.

// Texts and ids of real vocabularies, there and back.
mod tokenizer_vectors;

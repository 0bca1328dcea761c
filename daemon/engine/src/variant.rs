//! Deviations from normal operation, for benchmarks that measure what a feature costs.

/// The default is the product; only the benchmark program sets other values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Variant {
    /// All-reduces exchange nothing: results are meaningless, only timings are valid.
    pub omits_exchange: bool,
    /// Heads use neither speculative decoding nor the prefix cache.
    pub is_plain: bool,
    /// Prefill groups send keys and values only when the whole prompt is computed.
    pub transfers_at_end: bool,
}

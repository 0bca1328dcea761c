//! A gated delta net (Yang et al. 2024): the interface of its kernels.

/// The tokens of a sequence, in order, for one value head of a gated delta net.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRun<'a> {
    /// `[token, width]`
    pub rows: &'a [f32],
    /// Floats of a token.
    pub width: usize,
    /// Elements of its query, its key and its value, a multiple of 32.
    pub length: usize,
    /// Where they begin in the token's floats.
    pub places: [usize; 3],
    /// `[token, heads, 2]`: the factor by which states decay, and how much of the difference is learned.
    pub gates: &'a [f32],
    /// Number of value heads.
    pub heads: usize,
    /// The value head.
    pub head: usize,
}

/// A token of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaToken<'a> {
    pub query: &'a [f32],
    pub key: &'a [f32],
    pub value: &'a [f32],
    pub decay: f32,
    pub rate: f32,
}

impl<'a> DeltaRun<'a> {
    /// A token.
    #[inline(always)]
    pub(crate) fn token(&self, token: usize) -> DeltaToken<'a> {
        let row = &self.rows[token * self.width..][..self.width];
        let [query, key, value] = self.places.map(|place| &row[place..][..self.length]);
        let gates = &self.gates[2 * (token * self.heads + self.head)..][..2];
        DeltaToken { query, key, value, decay: gates[0], rate: gates[1] }
    }
}

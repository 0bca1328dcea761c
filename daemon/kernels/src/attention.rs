//! Arguments of attention kernels: a block of the KV cache and the running state of the query heads that read it.

/// 32 positions of one KV head.
#[derive(Clone, Copy, Debug)]
pub struct KvBlock<'a> {
    /// `[key_length, 32]`: the same column of all positions is contiguous, so that scores need no sum over lanes. `None`:
    /// the keys are the rows of `values`, `[32, key_length]`, and the values the first columns of these.
    pub keys: Option<KvValues<'a>>,
    /// `[32, value_length]`
    pub values: KvValues<'a>,
    /// The first position to attend to; below `count`.
    pub first: usize,
    /// End of the positions to attend to.
    pub count: usize,
    /// Scores are limited smoothly to plus or minus this: `cap tanh(score / cap)`.
    pub score_cap: Option<f32>,
    /// Keys and values that are read next, for prefetching: they lie elsewhere, where hardware prefetchers do not
    /// follow.
    pub next: [&'a [u8]; 2],
}

/// Keys or values in their stored form.
#[derive(Clone, Copy, Debug)]
pub enum KvValues<'a> {
    /// Unquantised.
    F32(&'a [f32]),
    /// Halves, as bits.
    F16(&'a [u16]),
    /// int8, with a scale as a half for each 32 columns of a head: `[columns / 32, 32]`.
    Q8(&'a [i8], &'a [u16]),
}

impl<'a> KvValues<'a> {
    /// The values as bytes, without scales.
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Self::F32(values) => bytemuck::must_cast_slice(values),
            Self::F16(values) => bytemuck::must_cast_slice(values),
            Self::Q8(values, _) => bytemuck::must_cast_slice(values),
        }
    }
}

/// Query heads of one token that read the same KV head, and their running state.
#[derive(Debug)]
pub struct Attention<'a> {
    /// Columns of a key.
    pub key_length: usize,
    /// Columns of a value.
    pub value_length: usize,
    /// `[heads, key_length]`, scaled.
    pub queries: &'a [f32],
    /// `[heads]`: largest score.
    pub largest: &'a mut [f32],
    /// `[heads]`: sum of weights.
    pub sum: &'a mut [f32],
    /// `[heads, value_length]`: weighted sum of values.
    pub out: &'a mut [f32],
}

impl Attention<'_> {
    /// Resets the state to that before the first position.
    pub fn clear(&mut self) {
        self.largest.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.out.fill(0.0);
    }

    /// Merges the state of the positions after this one: the result depends only on the order of the parts.
    pub fn merge(&mut self, other: &Attention<'_>) {
        for head in 0..self.largest.len() {
            let largest = self.largest[head].max(other.largest[head]);
            let (own, theirs) = ((self.largest[head] - largest).exp(), (other.largest[head] - largest).exp());
            let columns = head * self.value_length..(head + 1) * self.value_length;
            for (out, other) in self.out[columns.clone()].iter_mut().zip(&other.out[columns]) {
                *out = *out * own + other * theirs;
            }
            self.sum[head] = self.sum[head] * own + other.sum[head] * theirs;
            self.largest[head] = largest;
        }
    }
}

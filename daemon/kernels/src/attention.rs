//! Arguments of attention kernels: a block of the KV cache and the running state of the query heads that read it. Values of
//! 4 bits are unpacked here, once for all these heads: plain code is fast next to their products.
use crate::Kernels;

/// Positions of a block, and columns that share a scale.
const SIDE: usize = 32;

/// Merges one block of the KV cache into the state of all query heads that read it.
///
/// # Panics
/// A head has more than 1024 columns of 4 bits.
pub fn attend(kernels: &Kernels, block: KvBlock<'_>, state: &mut Attention<'_>) {
    match (block.values, state.key_length.max(state.value_length)) {
        (KvValues::Q4(..), ..=64) => attend_nibbles::<2>(kernels, block, state),
        (KvValues::Q4(..), ..=128) => attend_nibbles::<4>(kernels, block, state),
        (KvValues::Q4(..), ..=256) => attend_nibbles::<8>(kernels, block, state),
        (KvValues::Q4(..), _) => attend_nibbles::<32>(kernels, block, state),
        _ => (kernels.attend)(block, state),
    }
}

/// Unpacks at most `G` groups of columns with a scale.
fn attend_nibbles<const G: usize>(kernels: &Kernels, block: KvBlock<'_>, state: &mut Attention<'_>) {
    let mut unpacked = [[[0_i8; SIDE * SIDE]; G]; 2];
    let [of_keys, of_values] = &mut unpacked;
    let keys = block.keys.map(|keys| unpack(keys, of_keys.as_flattened_mut()));
    let values = unpack(block.values, of_values.as_flattened_mut());
    // The kernel prefetches as many bytes of the next keys as these have levels: the next values follow them.
    let next = [if keys.is_some() { block.next[0] } else { &[] }, &[]];
    (kernels.attend)(KvBlock { keys, values, next, ..block }, state);
}

fn unpack<'a>(packed: KvValues<'a>, out: &'a mut [i8]) -> KvValues<'a> {
    let KvValues::Q4(packed, scales) = packed else { return packed };
    for (bytes, out) in packed.as_chunks::<16>().0.iter().zip(out.as_chunks_mut::<SIDE>().0) {
        // Two loops, each of which becomes a few vector instructions.
        let (low, high) = out.split_at_mut(SIDE / 2);
        low.iter_mut().zip(bytes).for_each(|(out, byte)| *out = (byte & 15).cast_signed() - 8);
        high.iter_mut().zip(bytes).for_each(|(out, byte)| *out = (byte >> 4).cast_signed() - 8);
    }
    KvValues::Q8(&out[..2 * packed.len()], scales)
}

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
    /// 4 bits, offset by 8, with scales as for `Q8`. The number of columns is padded to a multiple of 32; of each 32
    /// consecutive values, 16 bytes hold the first half in their low and the second half in their high bits.
    Q4(&'a [u8], &'a [u16]),
}

impl<'a> KvValues<'a> {
    /// Number of values.
    pub fn count(self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Q8(values, _) => values.len(),
            Self::Q4(values, _) => 2 * values.len(),
        }
    }

    /// The values as bytes, without scales.
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Self::F32(values) => bytemuck::must_cast_slice(values),
            Self::F16(values) => bytemuck::must_cast_slice(values),
            Self::Q8(values, _) => bytemuck::must_cast_slice(values),
            Self::Q4(values, _) => values,
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

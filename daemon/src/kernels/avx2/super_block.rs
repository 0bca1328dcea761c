//! Products of weight rows in super-blocks of 256. Scales of weights and activations are multiplied for all 16 groups at once.
use std::arch::x86_64::*;

use shared::gguf::BlockFormat;

use super::{
    super::ActivationRow,
    vector::{half, load, load_32, products, sum, unsigned_products},
};

const COLUMNS: usize = 256;
const GROUPS: usize = COLUMNS / super::super::GROUP;

/// The activations of a super-block.
#[derive(Clone, Copy)]
struct Columns<'a> {
    quants: &'a [i8; COLUMNS],
    scales: &'a [f32; GROUPS],
    sums: &'a [i16; GROUPS],
}

/// Room for the activations of a super-block that is cut: zeros for the columns that are not ours.
struct Cut {
    quants: [i8; COLUMNS],
    scales: [f32; GROUPS],
    sums: [i16; GROUPS],
}

impl Cut {
    const EMPTY: Self = Self { quants: [0; COLUMNS], scales: [0.0; GROUPS], sums: [0; GROUPS] };

    /// The activations of super-block `index`, where the row begins `skip` blocks of 32 before them.
    #[inline]
    fn columns<'a>(&'a mut self, x: ActivationRow<'a>, index: usize, skip: usize) -> Columns<'a> {
        let given = x.scales.len();
        // Groups of the row from `first` to `end` are the super-block's; the activations begin at group `2 * skip`.
        let (first, end) = (index * GROUPS, (index + 1) * GROUPS);
        let from = first.max(2 * skip) - 2 * skip;
        let until = (end - 2 * skip).min(given);
        let (quants, scales, sums) = (&x.quants[from * 16..until * 16], &x.scales[from..until], &x.sums[from..until]);
        if let (Ok(quants), Ok(scales), Ok(sums)) = (quants.try_into(), scales.try_into(), sums.try_into()) {
            return Columns { quants, scales, sums };
        }
        let at = from + 2 * skip - first;
        *self = Self::EMPTY;
        self.quants[at * 16..][..quants.len()].copy_from_slice(quants);
        self.scales[at..][..scales.len()].copy_from_slice(scales);
        self.sums[at..][..sums.len()].copy_from_slice(sums);
        Columns { quants: &self.quants, scales: &self.scales, sums: &self.sums }
    }
}

/// One f32 for each of the 16 groups.
type OfGroups = [__m256; 2];

/// 8 bytes, one for each 32 columns, as floats times `factor`, for both groups of them.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn of_parts(bytes: u64, factor: __m256) -> OfGroups {
    let values = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes.cast_signed())));
    let values = _mm256_mul_ps(values, factor);
    [
        _mm256_permutevar8x32_ps(values, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
        _mm256_permutevar8x32_ps(values, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)),
    ]
}

/// With the scales of the activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn times_scales(values: OfGroups, x: Columns<'_>) -> OfGroups {
    let (scales, _) = x.scales.as_chunks::<8>();
    [_mm256_mul_ps(values[0], load(&scales[0])), _mm256_mul_ps(values[1], load(&scales[1]))]
}

/// The two groups of `part`, in the lanes of their sums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn in_halves(values: OfGroups, part: usize) -> __m256 {
    let (first, second) = (part as i32 % 4 * 2, part as i32 % 4 * 2 + 1);
    let spread = _mm256_setr_epi32(first, first, first, first, second, second, second, second);
    _mm256_permutevar8x32_ps(values[part / 4], spread)
}

/// 12 bytes of 6-bit scales and minimums: those of the first four parts are the low bits of bytes 0-3 and 4-7; of the others,
/// bytes 8-11 hold the lower four bits and the top bits of bytes 0-7 the upper two.
fn scales_and_minimums(packed: &[u8; 12]) -> (u64, u64) {
    let [a, b, c] = std::array::from_fn(|i| {
        u64::from(u32::from_le_bytes([packed[4 * i], packed[4 * i + 1], packed[4 * i + 2], packed[4 * i + 3]]))
    });
    let scales = c & 0x0f0f_0f0f | a >> 2 & 0x3030_3030;
    let minimums = c >> 4 & 0x0f0f_0f0f | b >> 2 & 0x3030_3030;
    (a & 0x3f3f_3f3f | scales << 32, b & 0x3f3f_3f3f | minimums << 32)
}

/// Scales of Q4_K and Q5_K with those of the activations, and the sum of the minimums, to be subtracted, in lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scales_of_k(block: &[u8], x: Columns<'_>) -> (OfGroups, __m256) {
    let packed = block[4..].first_chunk().expect("twelve bytes follow two halves");
    let (scales, minimums) = scales_and_minimums(packed);
    let scales = times_scales(of_parts(scales, half(block, 0)), x);
    let minimums = times_scales(of_parts(minimums, half(block, 2)), x);
    let sums = load_32_of_sums(x.sums);
    let low = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(sums)));
    let high = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_extracti128_si256::<1>(sums)));
    (scales, _mm256_fmadd_ps(minimums[0], low, _mm256_mul_ps(minimums[1], high)))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_32_of_sums(sums: &[i16; GROUPS]) -> __m256i {
    // SAFETY: 16 sums are 32 readable bytes; the load needs no alignment.
    unsafe { _mm256_loadu_si256(sums.as_ptr().cast()) }
}

/// `lanes` and the products of a part, as floats, times the scales of its groups.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add(lanes: __m256, scales: OfGroups, part: usize, products: __m256i) -> __m256 {
    _mm256_fmadd_ps(in_halves(scales, part), _mm256_cvtepi32_ps(products), lanes)
}

/// The low or the high nibbles of 32 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn nibbles(bytes: __m256i, high: bool) -> __m256i {
    let bytes = if high { _mm256_srli_epi16::<4>(bytes) } else { bytes };
    _mm256_and_si256(bytes, _mm256_set1_epi8(15))
}

/// Adds a super-block to even and odd lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_q4_k(block: &[u8; 144], x: Columns<'_>, [mut even, mut odd]: [__m256; 2]) -> [__m256; 2] {
    let (scales, minimums) = scales_of_k(block, x);
    let (quants, _) = x.quants.as_chunks::<32>();
    for (pair, bytes) in block[16..].as_chunks::<32>().0.iter().enumerate() {
        let bytes = load_32(bytes);
        even = add(even, scales, 2 * pair, unsigned_products(nibbles(bytes, false), load_32(&quants[2 * pair])));
        odd = add(odd, scales, 2 * pair + 1, unsigned_products(nibbles(bytes, true), load_32(&quants[2 * pair + 1])));
    }
    [_mm256_sub_ps(even, minimums), odd]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_q5_k(block: &[u8; 176], x: Columns<'_>, mut lanes: [__m256; 2]) -> [__m256; 2] {
    let (scales, minimums) = scales_of_k(block, x);
    let fifth = load_32(&block[16..48]);
    for (part, quants) in x.quants.as_chunks::<32>().0.iter().enumerate() {
        let low = nibbles(load_32(&block[48 + part / 2 * 32..]), part % 2 == 1);
        let bit = _mm256_set1_epi8((1_u8 << part).cast_signed());
        let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(fifth, bit), bit);
        let levels = _mm256_or_si256(low, _mm256_and_si256(is_set, _mm256_set1_epi8(16)));
        lanes[part % 2] = add(lanes[part % 2], scales, part, unsigned_products(levels, load_32(quants)));
    }
    [_mm256_sub_ps(lanes[0], minimums), lanes[1]]
}

/// Two of 32 bytes' bits, as the fifth and sixth.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn upper_bits(bytes: __m256i, quarter: usize) -> __m256i {
    let moved = match quarter {
        0 => _mm256_slli_epi16::<4>(bytes),
        1 => _mm256_slli_epi16::<2>(bytes),
        2 => bytes,
        _ => _mm256_srli_epi16::<2>(bytes),
    };
    _mm256_and_si256(moved, _mm256_set1_epi8(0x30))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_q6_k(block: &[u8; 210], x: Columns<'_>, mut lanes: [__m256; 2]) -> [__m256; 2] {
    let scale = half(block, 208);
    let bytes: &[u8; 16] = block[192..].first_chunk().expect("16 scales precede the last half");
    let of_eight = |bytes: u64| {
        let integers = _mm256_cvtepi8_epi32(_mm_cvtsi64_si128(bytes.cast_signed()));
        _mm256_mul_ps(_mm256_cvtepi32_ps(integers), scale)
    };
    let packed = u128::from_le_bytes(*bytes);
    let scales = times_scales([of_eight(packed as u64), of_eight((packed >> 64) as u64)], x);
    for (part, quants) in x.quants.as_chunks::<32>().0.iter().enumerate() {
        let (half_of, quarter) = (part / 4, part % 4);
        let low = nibbles(load_32(&block[half_of * 64 + quarter % 2 * 32..]), quarter >= 2);
        let high = upper_bits(load_32(&block[128 + half_of * 32..]), quarter);
        let weights = _mm256_sub_epi8(_mm256_or_si256(low, high), _mm256_set1_epi8(32));
        lanes[part % 2] = add(lanes[part % 2], scales, part, products(weights, load_32(quants)));
    }
    lanes
}

macro_rules! dot {
    ($name:ident, $format:expr, $add:ident) => {
        #[target_feature(enable = "avx2,fma,f16c")]
        pub(super) fn $name(row: &[u8], skip: usize, x: ActivationRow<'_>) -> f32 {
            const BYTES: usize = $format.block_bytes();
            let mut cut = Cut::EMPTY;
            let mut lanes = [_mm256_setzero_ps(); 2];
            let touched = (2 * skip + x.scales.len()).div_ceil(GROUPS);
            for (index, block) in row.as_chunks::<BYTES>().0[..touched].iter().enumerate() {
                lanes = $add(block, cut.columns(x, index, skip), lanes);
            }
            sum(_mm256_add_ps(lanes[0], lanes[1]))
        }
    };
}

dot!(q4_k, BlockFormat::Q4K, add_q4_k);
dot!(q5_k, BlockFormat::Q5K, add_q5_k);
dot!(q6_k, BlockFormat::Q6K, add_q6_k);

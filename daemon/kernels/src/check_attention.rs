//! Checks attention of every kernel table against the scalar one.
use super::{
    Attention, Kernels, KvBlock, KvValues,
    check::{Random, assert_near},
};

/// Stored keys `[columns, 32]`, values `[32, columns]` and scales.
fn kv_block(random: &mut Random, length: usize) -> (Vec<f32>, Vec<u16>, Vec<i8>, Vec<u16>) {
    let floats = random.values(32 * length);
    let halves = floats.iter().map(|value| half::f16::from_f32(*value).to_bits()).collect();
    let levels = (0..32 * length).map(|_| random.next() as i8).collect();
    let scales =
        (0..32 * length.div_ceil(32)).map(|_| half::f16::from_f32(random.value().abs() / 127.0).to_bits()).collect();
    (floats, halves, levels, scales)
}

#[test]
fn attention_of_every_table_matches_the_scalar_one() {
    let mut random = Random(8);
    let alike = [(64, 8), (64, 1), (128, 7), (16, 3), (24, 2), (80, 5)];
    let shapes = alike.map(|(length, heads)| ([length; 2], heads)).into_iter();
    // Values that are the first columns of the keys, as a latent next to its rotated key.
    let shapes = shapes.chain([([576, 512], 5), ([112, 96], 3), ([56, 48], 1)]);
    for (([length, width], heads), begin) in shapes.flat_map(|shape| [(shape, 0), (shape, 19)]) {
        let queries: Vec<f32> = random.values(heads * length).iter().map(|value| value / 8.0).collect();
        let blocks: Vec<_> = (0..4).map(|_| (kv_block(&mut random, length), kv_block(&mut random, width))).collect();
        for format in 0..4 {
            let run = |table: &Kernels| {
                let (mut largest, mut sum) = (vec![0.0; heads], vec![0.0; heads]);
                let mut out = vec![0.0; heads * width];
                let mut state = Attention {
                    key_length: length,
                    value_length: width,
                    queries: &queries,
                    largest: &mut largest,
                    sum: &mut sum,
                    out: &mut out,
                };
                state.clear();
                for (index, ((keys, values), count)) in blocks.iter().zip([32, 32, 32, 5]).enumerate() {
                    let of =
                        |(floats, halves, levels, scales): &'_ (Vec<f32>, Vec<u16>, Vec<i8>, Vec<u16>)| match format {
                            0 => KvOwned::F32(floats.clone()),
                            1 => KvOwned::F16(halves.clone()),
                            2 => KvOwned::Q4(nibbles(levels), scales.clone()),
                            _ => KvOwned::Q8(levels.clone(), scales.clone()),
                        };
                    let (keys, values) = (of(keys), of(values));
                    // The scalar table is the reference: it reads every format itself.
                    let attend: &dyn Fn(KvBlock<'_>, &mut Attention<'_>) = match table.name {
                        "scalar" => &table.attend,
                        _ => &|block, state| crate::attend(table, block, state),
                    };
                    attend(
                        KvBlock {
                            keys: (length == width).then_some(keys.view()),
                            values: if length == width { values.view() } else { keys.view() },
                            first: if index == 0 { begin } else { 0 },
                            count,
                            score_cap: (begin > 0).then_some(1.5),
                            next: [keys.view().bytes(), &[]],
                        },
                        &mut state,
                    );
                }
                out.chunks(width)
                    .zip(&sum)
                    .flat_map(|(out, sum)| out.iter().map(move |v| v / sum))
                    .collect::<Vec<f32>>()
            };
            let exact = run(&Kernels::SCALAR);
            for table in Kernels::available() {
                for (found, exact) in run(table).iter().zip(&exact) {
                    let what = format!("{} format {format} length {length} from {begin}", table.name);
                    assert_near(f64::from(*found), f64::from(*exact), 3.0, &what);
                }
            }
        }
    }
}

enum KvOwned {
    F32(Vec<f32>),
    F16(Vec<u16>),
    Q8(Vec<i8>, Vec<u16>),
    Q4(Vec<u8>, Vec<u16>),
}

/// As many values of 4 bits, of rows that are padded to 32 columns, with scales for levels that are 16 times as large.
fn nibbles(levels: &[i8]) -> Vec<u8> {
    let padded = (levels.len() / 32).next_multiple_of(32);
    levels.iter().cycle().take(padded * 16).map(|level| level.cast_unsigned()).collect()
}

impl KvOwned {
    fn view(&self) -> KvValues<'_> {
        match self {
            Self::F32(values) => KvValues::F32(values),
            Self::F16(values) => KvValues::F16(values),
            Self::Q8(levels, scales) => KvValues::Q8(levels, scales),
            Self::Q4(levels, scales) => KvValues::Q4(levels, scales),
        }
    }
}

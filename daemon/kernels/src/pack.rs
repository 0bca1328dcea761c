//! Byte order of a panel: blocks of `rows` rows next to each other, with each field of a block transposed, so that a
//! register of weights holds the same columns of all rows. It is a permutation: a panel has exactly the bytes of its
//! rows.
use std::ops::Range;

use gguf::BlockFormat;

/// A field of a block: its offset, its length in bytes, and how many bytes stay together.
type Field = (usize, usize, usize);

/// The fields of a block of one row.
const fn fields(format: BlockFormat) -> &'static [Field] {
    match format {
        BlockFormat::F32 => &[(0, 4, 4)],
        BlockFormat::F16 | BlockFormat::BF16 => &[(0, 2, 2)],
        BlockFormat::Q8_0 => &[(0, 2, 2), (2, 32, 4)],
        BlockFormat::Q4_0 | BlockFormat::Iq4Nl => &[(0, 2, 2), (2, 16, 4)],
        BlockFormat::Q4_1 => &[(0, 4, 2), (4, 16, 4)],
        BlockFormat::Q5_0 => &[(0, 2, 2), (2, 20, 4)],
        BlockFormat::Q5_1 => &[(0, 4, 2), (4, 20, 4)],
        BlockFormat::Q2K => &[(0, 16, 1), (16, 64, 4), (80, 4, 2)],
        BlockFormat::Q3K => &[(0, 96, 4), (96, 12, 1), (108, 2, 2)],
        BlockFormat::Q4K => &[(0, 4, 2), (4, 12, 1), (16, 128, 4)],
        BlockFormat::Q5K => &[(0, 4, 2), (4, 12, 1), (16, 160, 4)],
        BlockFormat::Q6K => &[(0, 192, 4), (192, 16, 1), (208, 2, 2)],
        BlockFormat::Iq4Xs => &[(0, 2, 2), (2, 6, 1), (8, 128, 4)],
        BlockFormat::Mxfp4 => &[(0, 1, 1), (1, 16, 4)],
        BlockFormat::Iq3Xxs => &[(0, 2, 2), (2, 64, 1), (66, 32, 4)],
        BlockFormat::Iq2Xxs => &INDICES_AND_SIGNS,
        BlockFormat::Iq3S => &[(0, 2, 2), (2, 72, 1), (74, 32, 4), (106, 4, 1)],
        BlockFormat::Iq2S => &[(0, 2, 2), (2, 32, 1), (34, 32, 4), (66, 16, 1)],
        BlockFormat::Iq2Xs => &[(0, 2, 2), (2, 64, 2), (66, 8, 1)],
    }
}

/// The fields of IQ2_XXS: a scale, then four indices and a word of signs for each 32 columns.
const INDICES_AND_SIGNS: [Field; 17] = {
    let mut fields = [(0, 2, 2); 17];
    let mut part = 0;
    while part < 8 {
        fields[1 + 2 * part] = (2 + 8 * part, 4, 1);
        fields[2 + 2 * part] = (6 + 8 * part, 4, 4);
        part += 1;
    }
    fields
};

/// Bytes of `count` rows as panels of `rows` rows; the last one is padded with zeros.
pub const fn packed_bytes(count: usize, row_bytes: usize, rows: usize) -> usize {
    count.next_multiple_of(rows) * row_bytes
}

/// Packs one panel: the blocks `blocks` of up to `rows` rows, where `row(index)` returns the bytes of one. Missing rows
/// are zeros.
pub fn pack_panel<'a>(
    format: BlockFormat,
    rows: usize,
    blocks: Range<usize>,
    row: impl Fn(usize) -> Option<&'a [u8]>,
    out: &mut [u8],
) {
    let bytes = format.block_bytes();
    assert_eq!(out.len(), blocks.len() * bytes * rows, "a panel has the bytes of its rows");
    for lane in 0..rows {
        let weights = row(lane).map(|row| &row[blocks.start * bytes..blocks.end * bytes]);
        for (index, out) in out.chunks_exact_mut(bytes * rows).enumerate() {
            for (begin, length, unit) in fields(format) {
                let out = &mut out[begin * rows..(begin + length) * rows];
                match weights {
                    Some(weights) => {
                        let field = &weights[index * bytes + begin..][..*length];
                        scatter(field, *unit, lane, rows, out);
                    }
                    None => scatter(&ZEROS[..*length], *unit, lane, rows, out),
                }
            }
        }
    }
}

const ZEROS: [u8; 256] = [0; 256];

/// Scatters the units of a field to the places of a lane.
fn scatter(field: &[u8], unit: usize, lane: usize, rows: usize, out: &mut [u8]) {
    match unit {
        4 => scatter_units::<4>(field, lane, rows, out),
        2 => scatter_units::<2>(field, lane, rows, out),
        _ => scatter_units::<1>(field, lane, rows, out),
    }
}

fn scatter_units<const UNIT: usize>(field: &[u8], lane: usize, rows: usize, out: &mut [u8]) {
    let places = out.as_chunks_mut::<UNIT>().0.iter_mut().skip(lane).step_by(rows);
    places.zip(field.as_chunks::<UNIT>().0).for_each(|(out, unit)| *out = *unit);
}

/// Restores the bytes of one row of a panel to the file's layout.
pub fn unpack_row(format: BlockFormat, rows: usize, panel: &[u8], lane: usize, out: &mut [u8]) {
    let bytes = format.block_bytes();
    assert_eq!(out.len() * rows, panel.len(), "a row of this panel");
    for (block, out) in panel.chunks_exact(bytes * rows).zip(out.chunks_exact_mut(bytes)) {
        for (begin, length, unit) in fields(format) {
            let field = &block[begin * rows..(begin + length) * rows];
            let places = field.chunks_exact(*unit).skip(lane).step_by(rows);
            let units = out[*begin..begin + length].chunks_exact_mut(*unit);
            places.zip(units).for_each(|(place, out)| out.copy_from_slice(place));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_cover_a_block_and_a_packed_row_comes_back() {
        for format in BlockFormat::ALL {
            let bytes = format.block_bytes();
            let covered: Vec<usize> = fields(format).iter().flat_map(|(at, length, _)| *at..at + length).collect();
            assert_eq!(covered, (0..bytes).collect::<Vec<_>>(), "{}", format.name());
            for (rows, given) in [(1, 1), (4, 4), (8, 5), (16, 16), (16, 1)] {
                let row: Vec<Vec<u8>> = (0..given)
                    .map(|row| (0..3 * bytes).map(|at| (at * 7 + row * 31 + at / 5) as u8).collect())
                    .collect();
                let mut panel = vec![1; 2 * bytes * rows];
                let place = |lane: usize| row.get(lane).map(Vec::as_slice);
                pack_panel(format, rows, 1..3, place, &mut panel);
                for lane in 0..rows {
                    let mut back = vec![1; 2 * bytes];
                    unpack_row(format, rows, &panel, lane, &mut back);
                    let expected = place(lane).map_or(vec![0; 2 * bytes], |row| row[bytes..].to_vec());
                    assert_eq!(back, expected, "{} row {lane} of {rows}", format.name());
                }
            }
        }
    }
}

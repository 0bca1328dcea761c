//! Grids of the IQ2 and IQ3 formats: the magnitudes of 4 or 8 columns for each index, as llama.cpp's ggml-common.h lists
//! them (`fixtures/grids.txt`: a name, then its entries as little-endian numbers).
use std::sync::OnceLock;

use gguf::BlockFormat;

const TEXT: &str = include_str!("../fixtures/grids.txt");

/// A grid.
pub struct Grid {
    /// Columns of an entry.
    pub width: usize,
    /// All magnitudes, ascending.
    pub magnitudes: Vec<u8>,
    entries: Vec<[u8; 8]>,
    /// For each combination of magnitudes, the index of the nearest entry.
    nearest: Vec<u16>,
}

impl Grid {
    /// The grid of a format.
    ///
    /// # Panics
    /// If the format has none.
    pub fn of(format: BlockFormat) -> &'static Self {
        static GRIDS: [OnceLock<Grid>; 5] = [const { OnceLock::new() }; 5];
        let (index, name) = match format {
            BlockFormat::Iq3Xxs => (0, "iq3xxs_grid"),
            BlockFormat::Iq3S => (1, "iq3s_grid"),
            BlockFormat::Iq2Xxs => (2, "iq2xxs_grid"),
            BlockFormat::Iq2Xs => (3, "iq2xs_grid"),
            BlockFormat::Iq2S => (4, "iq2s_grid"),
            other => panic!("{} has no grid", other.name()),
        };
        GRIDS[index].get_or_init(|| Self::read(name))
    }

    fn read(name: &str) -> Self {
        let (_, rest) = TEXT.split_once(&format!("{name}\n")).expect("the grid is listed");
        let words: Vec<&str> = rest.split_whitespace().take_while(|word| !word.ends_with("_grid")).collect();
        let width = words[0].len() / 2;
        let entries =
            words.iter().map(|word| u64::from_str_radix(word, 16).expect("a hexadecimal number").to_le_bytes());
        let entries: Vec<[u8; 8]> = entries.collect();
        let mut magnitudes: Vec<u8> = entries.iter().flat_map(|entry| entry[..width].to_vec()).collect();
        magnitudes.sort_unstable();
        magnitudes.dedup();
        let mut grid = Self { width, magnitudes, entries, nearest: Vec::new() };
        let count = grid.magnitudes.len().pow(width as u32);
        grid.nearest = (0..count).map(|combination| grid.search(combination)).collect();
        grid
    }

    /// The entry nearest to a combination, whose first column is its lowest digit.
    fn search(&self, mut combination: usize) -> u16 {
        let mut wanted = [0; 8];
        for wanted in &mut wanted[..self.width] {
            *wanted = i32::from(self.magnitudes[combination % self.magnitudes.len()]);
            combination /= self.magnitudes.len();
        }
        let nearest = (0..self.entries.len()).min_by_key(|index| {
            let columns = self.entries[*index].iter().zip(wanted);
            columns.map(|(found, wanted)| (i32::from(*found) - wanted).pow(2)).sum::<i32>()
        });
        nearest.expect("a grid has entries") as u16
    }

    /// The magnitude of a column of an entry.
    pub fn magnitude(&self, index: usize, column: usize) -> f32 {
        f32::from(self.entries[index][column])
    }

    /// The index of an entry near to these magnitudes.
    pub fn index(&self, wanted: &[f32]) -> usize {
        let combination = wanted.iter().rev().fold(0, |all, wanted| {
            let above = self.magnitudes.windows(2).take_while(|pair| *wanted * 2.0 > f32::from(pair[0] + pair[1]));
            all * self.magnitudes.len() + above.count()
        });
        self.nearest[combination].into()
    }
}

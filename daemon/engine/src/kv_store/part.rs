//! Which part of each block a rank keeps, so that another rank, also one of another cut, finds what it needs.
use std::{fmt, ops::Range, str::FromStr};

use sha2::{Digest, Sha256};
use smallvec::SmallVec;
use topology::ShardPlan;

use super::{label::Kind, name::PartHash};

/// Most kinds of layers in a part that was not made here.
const KINDS_MAX: usize = 16;

/// Layers, and the KV heads and units of a state in each kind of layer, as indices in the whole model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part {
    layers: Range16,
    /// KV heads, and units with a state.
    cuts: SmallVec<[[Range16; 2]; 2]>,
}

/// A range of indices; ordered, unlike [`Range`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Range16 {
    start: u16,
    end: u16,
}

impl Range16 {
    fn of(range: &Range<usize>) -> Self {
        let short = |index: usize| u16::try_from(index).unwrap_or(u16::MAX);
        Self { start: short(range.start), end: short(range.end) }
    }
}

impl Part {
    /// The part of a rank with this shard.
    pub fn of(plan: &ShardPlan) -> Self {
        let cuts = plan.cuts.iter().map(|cut| [Range16::of(&cut.heads_kv), Range16::of(&cut.heads)]);
        Self { layers: Range16::of(&plan.layers), cuts: cuts.collect() }
    }

    /// Its hash.
    pub fn hash(&self) -> PartHash {
        let digest: [u8; 32] = Sha256::digest(self.to_string()).into();
        std::array::from_fn(|index| digest[index])
    }

    /// Indices of those of `parts` that together have all of this one, in the given order and none without need; `None`
    /// if something is missing. A part without keys, values or states needs any one of them.
    pub fn covered_by(&self, kind: Kind, parts: &[&Self]) -> Option<SmallVec<[usize; 4]>> {
        let place = match kind {
            Kind::Block => 0,
            Kind::State => 1,
        };
        if let Some(same) = parts.iter().position(|part| *part == self) {
            return Some(std::iter::once(same).collect());
        }
        let mut missing = Vec::new();
        for (number, cut) in self.cuts.iter().enumerate() {
            let wanted = cut[place];
            let layers = self.layers.start..self.layers.end;
            missing.extend(layers.flat_map(|layer| (wanted.start..wanted.end).map(move |head| (layer, number, head))));
        }
        let mut used = SmallVec::new();
        for (index, part) in parts.iter().enumerate().filter(|(_, part)| part.cuts.len() == self.cuts.len()) {
            let before = missing.len();
            missing.retain(|(layer, number, head)| {
                let has = |range: Range16, index: u16| range.start <= index && index < range.end;
                !has(part.layers, *layer) || !has(part.cuts[*number][place], *head)
            });
            if missing.len() < before || (used.is_empty() && missing.is_empty()) {
                used.push(index);
            }
            if missing.is_empty() {
                break;
            }
        }
        (missing.is_empty() && !used.is_empty()).then_some(used)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}{:04x}", self.layers.start, self.layers.end)?;
        self.cuts.iter().flatten().try_for_each(|range| write!(f, "{:04x}{:04x}", range.start, range.end))
    }
}

impl FromStr for Part {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (ranges, rest) = text.as_bytes().as_chunks::<8>();
        let kinds = ranges.len().saturating_sub(1) / 2;
        let has_digits = text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        if !rest.is_empty() || ranges.len() % 2 == 0 || kinds > KINDS_MAX || !has_digits {
            return Err(());
        }
        let range = |place: usize| {
            let number = |from: usize| u16::from_str_radix(&text[from..from + 4], 16).map_err(drop);
            Ok(Range16 { start: number(8 * place)?, end: number(8 * place + 4)? })
        };
        let cuts = (0..kinds).map(|kind| Ok([range(1 + 2 * kind)?, range(2 + 2 * kind)?]));
        Ok(Self { layers: range(0)?, cuts: cuts.collect::<Result<_, ()>>()? })
    }
}

#[cfg(test)]
mod tests {
    use models::known;
    use topology::cut_stages;

    use super::*;

    /// The parts of stages of these layers, each cut among so many ranks.
    fn parts(model: &str, stages: &[(Range<usize>, usize)]) -> Vec<Part> {
        let spec = known::MODELS.iter().find(|known| known.name == model).expect("it is known").spec();
        let stages: Vec<_> = stages.iter().map(|(layers, ranks)| (layers.clone(), vec![1; *ranks])).collect();
        cut_stages(&spec, &stages).expect("it can be cut").iter().map(Part::of).collect()
    }

    #[test]
    fn parts_of_any_cut_cover_those_of_another() {
        let cuts = [
            parts("tinyllama-1.1b", &[(0..22, 1)]),
            parts("tinyllama-1.1b", &[(0..22, 2)]),
            parts("tinyllama-1.1b", &[(0..22, 3)]),
            parts("tinyllama-1.1b", &[(0..22, 4)]),
            parts("tinyllama-1.1b", &[(0..9, 2), (9..22, 2)]),
        ];
        for from in &cuts {
            let all: Vec<&Part> = from.iter().collect();
            for wanted in cuts.iter().flatten() {
                let used = wanted.covered_by(Kind::Block, &all).expect("together they have everything");
                assert!(used.len() <= all.len());
                // Neighbours of three ranks hold the same heads: others may do as well.
                if from.len() != 3 {
                    let others = all.iter().enumerate().filter(|(index, _)| !used.contains(index));
                    let others: Vec<&Part> = others.map(|(_, part)| *part).collect();
                    assert_eq!(wanted.covered_by(Kind::Block, &others), None, "{wanted} without what it needs");
                }
            }
        }
        let (halves, quarters) = (&cuts[1], &cuts[3]);
        let mixed = [&quarters[1], &halves[1], &quarters[0]];
        assert_eq!(halves[0].covered_by(Kind::Block, &mixed).as_deref(), Some(&[0, 2][..]));
        assert_eq!(quarters[2].covered_by(Kind::Block, &mixed).as_deref(), Some(&[1][..]));
        assert_eq!(halves[0].covered_by(Kind::Block, &[]), None);
    }

    #[test]
    fn rank_without_kv_heads_needs_any_part() {
        let many = parts("tinyllama-1.1b", &[(0..22, 1)]);
        let none =
            Part { cuts: many[0].cuts.iter().map(|_| [Range16 { start: 0, end: 0 }; 2]).collect(), ..many[0].clone() };
        assert_eq!(none.covered_by(Kind::Block, &[]), None);
        assert_eq!(none.covered_by(Kind::Block, &[&many[0]]).as_deref(), Some(&[0][..]));
    }

    #[test]
    fn parts_survive_being_written_and_others_are_errors() {
        for part in parts("glm-4.7-flash", &[(0..20, 2), (20..47, 1)]) {
            let text = part.to_string();
            assert_eq!(text.parse().as_ref(), Ok(&part));
            assert!((0..text.len()).all(|end| text[..end].parse().as_ref() != Ok(&part)));
        }
        for text in ["", "0000", "000g0001", "0000000100000001", &"0".repeat(8 * 2 * KINDS_MAX + 24), "é0000001"] {
            assert_eq!(text.parse::<Part>(), Err(()), "{text}");
        }
    }
}

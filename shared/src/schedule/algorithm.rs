//! The names of the all-reduces, which of them give equal bytes, and the operator's choice.
use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// How an all-reduce goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u8)]
pub enum Algorithm {
    /// Every rank sends its part to every other, and each sums all of them.
    #[serde(rename = "direct")]
    Direct = 1,
    /// Every rank sums a slice of the columns, then sends its result to every other.
    #[serde(rename = "rs-ag")]
    ReduceScatter = 2,
    /// Sums of twice as many ranks in each round; ranks beyond a power of two are folded in before.
    #[serde(rename = "doubling")]
    Doubling = 3,
    /// Slices go round once to be summed and once to be known.
    #[serde(rename = "ring")]
    Ring = 4,
    /// Rank 0 sums all and sends the result to each.
    #[serde(rename = "star")]
    Star = 5,
    /// Direct within groups of neighbours, then between the groups.
    #[serde(rename = "two-level")]
    TwoLevel = 6,
}

/// Algorithms of one class give equal bytes; logits of two classes may differ in their last bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// `round(sum in rank order of round(part))`.
    RankOrder,
    /// A binary tree over neighbouring ranks, each sum rounded.
    Doubling,
    /// In the order of the ring from the rank behind the slice's owner on, each sum rounded.
    Ring,
    /// In rank order within each group, then in the order of groups.
    TwoLevel,
}

impl Algorithm {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Direct, Self::ReduceScatter, Self::Doubling, Self::Ring, Self::Star, Self::TwoLevel];

    /// Which others give the same bytes.
    pub fn class(self) -> Class {
        match self {
            Self::Direct | Self::ReduceScatter | Self::Star => Class::RankOrder,
            Self::Doubling => Class::Doubling,
            Self::Ring => Class::Ring,
            Self::TwoLevel => Class::TwoLevel,
        }
    }

    /// Those that `auto` chooses from, the usual choice first.
    pub fn candidates() -> impl Iterator<Item = Self> + Clone {
        Self::ALL.into_iter().filter(|algorithm| algorithm.class() == Class::RankOrder)
    }

    /// The number that frames carry.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The algorithm with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.number() == number)
    }

    /// Its name, as flags and tables write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::ReduceScatter => "rs-ag",
            Self::Doubling => "doubling",
            Self::Ring => "ring",
            Self::Star => "star",
            Self::TwoLevel => "two-level",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|algorithm| algorithm.name() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("{text:?} is no collective; take one of {names}")
        })
    }
}

/// Which algorithm an assignment uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// The fastest of [`Algorithm::candidates`] for each number of tokens, as timed on the links.
    #[default]
    Auto,
    /// This one for all.
    Forced(Algorithm),
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Forced(algorithm) => algorithm.fmt(f),
        }
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse().map(Self::Forced).map_err(|error: String| format!("{error}, or auto"))
    }
}

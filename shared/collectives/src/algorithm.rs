//! The all-reduce algorithms, which of them give identical bytes, and the operator's choice.
use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// An all-reduce algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u8)]
pub enum Algorithm {
    /// Direct exchange: every rank sends its part to every other rank, and each sums all parts.
    #[serde(rename = "direct")]
    Direct = 1,
    /// Every rank sums a slice of the columns, then sends its result to every other rank.
    #[serde(rename = "rs-ag")]
    ReduceScatter = 2,
    /// Recursive doubling: each round sums twice as many ranks; ranks beyond a power of two are folded in first.
    #[serde(rename = "doubling")]
    Doubling = 3,
    /// Ring: slices travel around the ring once to be summed and once to be distributed.
    #[serde(rename = "ring")]
    Ring = 4,
    /// Rank 0 sums all parts and sends the result to each rank.
    #[serde(rename = "star")]
    Star = 5,
    /// Direct exchange within groups of neighbouring ranks, then between the groups.
    #[serde(rename = "two-level")]
    TwoLevel = 6,
}

/// Algorithms of one class give identical bytes; logits of two classes may differ in their last bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// `round(sum in rank order of round(part))`.
    RankOrder,
    /// A binary tree over neighbouring ranks, each sum rounded.
    Doubling,
    /// In the order of the ring, starting after the slice's owner, each sum rounded.
    Ring,
    /// In rank order within each group, then in the order of groups.
    TwoLevel,
}

impl Algorithm {
    /// All algorithms, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Direct, Self::ReduceScatter, Self::Doubling, Self::Ring, Self::Star, Self::TwoLevel];

    /// The class of algorithms that give the same bytes.
    pub fn class(self) -> Class {
        match self {
            Self::Direct | Self::ReduceScatter | Self::Star => Class::RankOrder,
            Self::Doubling => Class::Doubling,
            Self::Ring => Class::Ring,
            Self::TwoLevel => Class::TwoLevel,
        }
    }

    /// The algorithms that `auto` chooses from, the default first.
    pub fn candidates() -> impl Iterator<Item = Self> + Clone {
        Self::ALL.into_iter().filter(|algorithm| algorithm.class() == Class::RankOrder)
    }

    /// Its number in frames.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The algorithm with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.number() == number)
    }

    /// Its name in flags and tables.
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
            format!("unknown collective {text:?}; use one of {names}")
        })
    }
}

/// The algorithm that an assignment requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// The fastest of [`Algorithm::candidates`] for each number of tokens, as measured on the links.
    #[default]
    Auto,
    /// This algorithm for all sizes.
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

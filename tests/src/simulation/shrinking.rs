//! Shrinks a failing history, and tells its story.
use std::time::Duration;

use super::History;

/// Most runs of a history while it is shrunk.
const TRIES: usize = 400;
/// A duration that is not shortened further.
const SHORT: Duration = Duration::from_millis(400);
/// Most lines of a story.
const LINES: usize = 120;

impl History {
    fn fails(&self) -> bool {
        self.run(false).violation.is_some()
    }

    /// The same history with few faults, short ones, and few requests, that still fails.
    pub fn shrunk(&self) -> Self {
        let count = self.faults.len();
        // The last few faults often suffice, because the earlier ones were already over.
        let few = [1, 2, 3, 5, 8]
            .into_iter()
            .map(|kept| Self { faults: self.faults[count - kept.min(count)..].to_vec(), ..self.clone() })
            .find(Self::fails);
        let mut small = few.unwrap_or_else(|| self.clone());
        let mut tries = 0;
        let mut index = 0;
        while index < small.faults.len() && tries < TRIES {
            let mut without = small.clone();
            without.faults.remove(index);
            tries += 1;
            if without.fails() {
                small = without;
            } else {
                index += 1;
            }
        }
        small.with_few_requests(&mut tries).with_short_faults(&mut tries)
    }

    fn with_few_requests(self, tries: &mut usize) -> Self {
        let mut small = self;
        for requests in [0, 1, 4, 16] {
            let fewer = Self { requests, ..small.clone() };
            *tries += 1;
            if requests < small.requests && fewer.fails() {
                small = fewer;
                break;
            }
        }
        small
    }

    fn with_short_faults(self, tries: &mut usize) -> Self {
        let mut small = self;
        for index in 0..small.faults.len() {
            while small.faults[index].trouble.lasts > SHORT && *tries < TRIES {
                let mut shorter = small.clone();
                let lasts = shorter.faults[index].trouble.lasts / 2;
                shorter.faults[index].trouble.lasts = Duration::from_millis(lasts.as_millis() as u64);
                *tries += 1;
                if !shorter.fails() {
                    break;
                }
                small = shorter;
            }
        }
        small
    }

    /// The report of a failing history: seed, faults, and the story from the first remaining fault.
    pub fn tell(&self) -> String {
        let small = self.shrunk();
        let outcome = small.run(true);
        let what = outcome.violation.unwrap_or_default();
        let (layout, faults) = (self.scene.0, small.faults.len());
        let head = format!(
            "seed {}, {layout}, {faults} of {} faults and {} requests are enough: {what}",
            self.seed,
            self.faults.len(),
            small.requests
        );
        let from = outcome.story.iter().position(|line| line.contains("FAULT")).unwrap_or(0);
        let lines = &outcome.story[from..];
        let half = LINES / 2;
        let lines =
            if lines.len() > LINES { [&lines[..half], &lines[lines.len() - half..]].concat() } else { lines.to_vec() };
        format!("{head}\n{}", lines.join("\n"))
    }
}

//! The history of a figure of a node: its latest value, and a graph in which seconds stand out that its machine was
//! throttled, too hot or short of voltage. Outdated figures are dim.
use ratatui::{style::Style, text::Span};

use crate::{
    state::{
        State,
        history::Sample,
        node::{Node, NodeStatus},
    },
    view::{
        theme::Theme,
        widgets::graph::{graph, styled},
    },
};

/// Range of temperatures in °C, up to where the firmware limits them.
pub(super) const CELSIUS: (f64, f64) = (20.0, 85.0);

/// A node's samples that graphs of a size show.
pub(super) struct Trends<'a> {
    theme: &'a Theme,
    samples: Vec<Sample>,
    is_live: bool,
    cells: usize,
    rows: usize,
}

/// A figure and its graph.
pub(super) struct Trend {
    /// The latest value.
    pub(super) figure: String,
    /// The style of the latest value.
    pub(super) style: Style,
    /// The highest value shown.
    pub(super) most: String,
    /// Lines from the top.
    pub(super) graph: Vec<Vec<Span<'static>>>,
}

impl<'a> Trends<'a> {
    /// The samples of a node for graphs of so many cells and rows.
    pub(super) fn of(state: &State, theme: &'a Theme, node: &Node, [cells, rows]: [usize; 2]) -> Self {
        let all = node.history.samples();
        let samples = all.iter().skip(all.len().saturating_sub(cells)).copied().collect();
        Self { theme, samples, is_live: matches!(node.status(state.now), NodeStatus::Reports(_)), cells, rows }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The history of a figure; without a scale, from 0 to the highest value.
    pub(super) fn trend(
        &self,
        of: fn(&Sample) -> Option<f64>,
        scale: Option<(f64, f64)>,
        write: fn(f64) -> String,
    ) -> Trend {
        let most = self.samples.iter().filter_map(of).reduce(f64::max);
        let (low, high) = scale.unwrap_or((0.0, most.unwrap_or(0.0)));
        let values: Vec<Option<f64>> = self.samples.iter().map(|sample| of(sample).map(|value| value - low)).collect();
        let unknown = self.cells - values.len();
        let lines = graph(&values, high - low, self.cells, self.rows).into_iter();
        let graph = lines.map(|line| styled(&line, |cell| self.at(cell.checked_sub(unknown)), self.theme.faint));
        let last = self.samples.last();
        let is_ill = self.is_live && last.is_some_and(|sample| sample.is_ill);
        Trend {
            figure: last.and_then(of).map_or_else(|| "–".to_owned(), write),
            style: if is_ill { self.theme.warn } else { self.current(self.theme.plain) },
            most: most.map_or_else(String::new, write),
            graph: graph.collect(),
        }
    }

    /// The style of a sample's bar.
    fn at(&self, sample: Option<usize>) -> Style {
        let is_ill = sample.and_then(|at| self.samples.get(at)).is_some_and(|sample| sample.is_ill);
        if is_ill { self.theme.bad } else { self.current(self.theme.accent) }
    }

    /// A style for current figures; old ones are dim.
    pub(super) fn current(&self, style: Style) -> Style {
        if self.is_live { style } else { self.theme.dim }
    }
}

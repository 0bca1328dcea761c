//! Progress of model files on their way to nodes: on a terminal one line for all nodes, with rate and remaining time,
//! which is erased at the end; elsewhere a line per node and step, and per 10 %.
use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::cli::shared::{output, progress, table::terminal_size};
use crate::operator::transfer::{Lane, TransferReport, picture};
use crate::view::format::shorten;

/// Least time between two drawings.
const REDRAW: Duration = Duration::from_millis(100);

/// A model on its way to one or several nodes.
#[derive(Debug)]
pub(crate) struct Transfer {
    model: String,
    since: Instant,
    state: Mutex<Lanes>,
}

#[derive(Debug)]
struct Lanes {
    nodes: Vec<Lane>,
    drawn: Option<Instant>,
}

impl Transfer {
    /// `model` to nodes with these names.
    pub(crate) fn new(model: &str, nodes: &[&str]) -> Self {
        let nodes = nodes.iter().map(|name| Lane::new(output::clean(name))).collect();
        Self { model: output::clean(model), since: Instant::now(), state: Mutex::new(Lanes { nodes, drawn: None }) }
    }

    /// Takes a report of the node with this index.
    pub(crate) fn tell(&self, node: usize, report: TransferReport) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let Some(lane) = state.nodes.get_mut(node) else { return };
        lane.tell(now - self.since, report);
        if !progress::is_drawn() {
            lane.line(&self.model).iter().for_each(|line| output::note(line));
            return;
        }
        if state.drawn.is_none_or(|drawn| now - drawn >= REDRAW) {
            state.drawn = Some(now);
            let columns = terminal_size().map_or(80, |(columns, _)| columns);
            let line = picture(&self.model, &state.nodes, now - self.since);
            output::note_part(&format!("\r{}\x1b[K", shorten(&line, columns.saturating_sub(1))));
        }
    }
}

impl Drop for Transfer {
    /// Erases the line.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.drawn.is_some() {
            progress::clear();
        }
    }
}

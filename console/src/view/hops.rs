//! Hand-overs between the stages of a pipeline: one row per boundary.
use common::units::Nanoseconds;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use telemetry::HopSync;

use crate::{
    state::sync::{Boundary, SyncPicture},
    view::{
        format::{fit, fit_right, tight_time},
        theme::Theme,
        widgets::panel::{lines, panel},
    },
};

const NAMES: usize = 21;
const TIME: usize = 6;
const BYTES: usize = 9;
/// Maximum number of rows; the slowest are kept.
const ROWS_MAX: usize = 8;

/// Lines needed; 0 without a pipeline.
pub(super) fn height(picture: &SyncPicture) -> u16 {
    if picture.boundaries.is_empty() { 0 } else { picture.boundaries.len().min(ROWS_MAX) as u16 + 2 }
}

/// Renders the boundaries.
pub(super) fn draw(theme: &Theme, frame: &mut Frame, area: Rect, picture: &SyncPicture) {
    if area.height == 0 {
        return;
    }
    let area = panel(frame, theme, area, false, "Hand-overs between stages", Span::raw(""));
    let titles = ["p50", "p95", "p99", "before", "behind", "own"];
    let titles: Vec<String> = titles.iter().map(|title| fit_right(title, TIME)).collect();
    let heading = format!("{} {} {}", fit("  from > to, hop", NAMES), titles.join(" "), fit_right("bytes", BYTES));
    let mut shown: Vec<&Boundary> = picture.boundaries.iter().collect();
    if shown.len() > ROWS_MAX {
        shown.sort_by_key(|boundary| std::cmp::Reverse(boundary.sync.p95));
        shown.truncate(ROWS_MAX);
    }
    let rows = shown.into_iter().map(|boundary| Line::styled(row(boundary), theme.plain));
    lines(frame, area, std::iter::once(Line::styled(heading, theme.dim)).chain(rows));
}

fn row(boundary: &Boundary) -> String {
    let sync = &boundary.sync;
    let names = format!("  {} > {}", boundary.from, boundary.to);
    let times = hop_times(sync).into_iter().chain([sync.blocked, sync.sending, sync.compute].map(tight_time));
    let times: Vec<String> = times.map(|time| fit_right(&time, TIME)).collect();
    let bytes = sync.bytes.0 / u64::from(sync.count.max(1));
    format!("{} {} {}", fit(&names, NAMES), times.join(" "), fit_right(&bytes.to_string(), BYTES))
}

/// Median, 95th and 99th percentile of the hop latency; empty until the clocks have been compared.
fn hop_times(sync: &HopSync) -> [String; 3] {
    [sync.p50, sync.p95, sync.p99]
        .map(|time: Nanoseconds| if sync.timed > 0 { tight_time(time) } else { "–".to_owned() })
}

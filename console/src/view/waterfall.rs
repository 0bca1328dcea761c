//! Where the time of a generation went: its consecutive stages on one scale, and the components of each.
use common::latency::ratio;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

use crate::{
    state::{
        State,
        result::{ResultStage, stages},
    },
    view::{
        format::{fit, fit_right, milliseconds},
        theme::Theme,
        widgets::{
            bar,
            panel::{lines, panel},
        },
    },
};

const TITLE: usize = 8;
const TIME: usize = 9;
/// Width of the description of a stage's components, in cells.
const WORDS: usize = 44;
/// Minimum width of the bars, in cells, before descriptions get room.
const BAR_MIN: usize = 14;

/// Lines needed; 0 without a request.
pub(super) fn height(state: &State) -> u16 {
    let count = stages(state).len() as u16;
    if count == 0 { 0 } else { 1 + count }
}

/// Renders the stages so far.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let stages = stages(state);
    let remark = Line::from_iter([
        Span::styled("█", theme.ok),
        Span::styled("own ", theme.dim),
        Span::styled("▒", theme.warn),
        Span::styled("wait ", theme.dim),
        Span::styled("░", theme.accent),
        Span::styled("wire", theme.dim),
    ]);
    let below = panel(frame, theme, area, false, "Where its time went", Span::raw(""));
    let cells = remark.width() as u16;
    if area.width > cells + 30 {
        let place = Rect { x: area.right() - cells - 4, width: cells + 2, height: 1, ..area };
        frame.render_widget(
            Line::from_iter([Span::raw(" ")].into_iter().chain(remark.spans).chain([Span::raw(" ")])),
            place,
        );
    }
    let all = stages.iter().map(|stage| stage.to).fold(0.0, f64::max);
    let room = usize::from(area.width).saturating_sub(1 + TITLE + 1 + TIME + 2);
    let words = if room >= BAR_MIN + WORDS { WORDS } else { 0 };
    let bar = room.saturating_sub(words);
    lines(frame, below, stages.iter().map(|stage| row(theme, stage, all, bar, words)));
}

fn row(theme: &Theme, stage: &ResultStage, all: f64, cells: usize, words: usize) -> Line<'static> {
    let took = stage.to - stage.from;
    let mut spans = vec![
        Span::styled(format!(" {} ", fit(stage.title, TITLE)), theme.plain),
        Span::styled(fit_right(&milliseconds(took), TIME) + "  ", theme.plain),
    ];
    let at = |time: f64| (ratio(time * cells as f64, all).round() as usize).min(cells);
    let (from, to) = (at(stage.from), at(stage.to));
    // A stage that took time is visible, however short it was.
    let to = if took > 0.0 { to.max(from + 1).min(cells) } else { to };
    let from = from.min(to.saturating_sub(usize::from(took > 0.0)));
    spans.push(Span::raw(" ".repeat(from)));
    match stage.shares {
        Some(shares) => {
            let [own, wait, wire] = shares.map(|share: f64| (share * 1e6) as u64);
            let parts = [(own, "█", theme.ok), (wait, "▒", theme.warn), (wire, "░", theme.accent)];
            spans.extend(bar::stacked(&parts, own + wait + wire, to - from));
        }
        None => spans.push(Span::styled("▓".repeat(to - from), theme.dim)),
    }
    spans.push(Span::raw(" ".repeat(cells - to)));
    if words > 0 {
        spans.push(Span::styled(fit(&format!("  {}", in_words(stage, took)), words), theme.dim));
    }
    Line::from(spans)
}

fn in_words(stage: &ResultStage, took: f64) -> String {
    let mut words = Vec::new();
    if stage.tokens > 0 && took > 0.0 {
        words.push(format!("{:.1} tokens/s", ratio(f64::from(stage.tokens) * 1e3, took)));
    }
    if let Some([own, wait, wire]) = stage.shares {
        words.push(format!("own {:.0} wait {:.0} wire {:.0} %", own * 100.0, wait * 100.0, wire * 100.0));
    }
    words.join(", ")
}

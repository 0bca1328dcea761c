//! An area graph of several lines: the history of a figure, newest at the right end. Dots show its extent.
use ratatui::{style::Style, text::Span};

/// An empty cell.
const EMPTY: char = '·';
/// Fillings of a cell in eighths, from below.
pub(crate) const EIGHTHS: [char; 9] = [EMPTY, '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The last `cells` values as `rows` lines from the top, of which `high` fills all; a value that is not known leaves its
/// column empty, and 0 is a thin line.
pub(crate) fn graph(values: &[Option<f64>], high: f64, cells: usize, rows: usize) -> Vec<String> {
    let shown = &values[values.len().saturating_sub(cells)..];
    let full = rows * 8;
    let heights: Vec<usize> = shown
        .iter()
        .map(|value| match value {
            Some(value) if value.is_finite() && high > 0.0 => {
                ((value / high * full as f64).round().clamp(0.0, full as f64) as usize).max(1)
            }
            Some(_) => 1,
            None => 0,
        })
        .collect();
    (0..rows)
        .map(|row| {
            let below = (rows - 1 - row) * 8;
            let bars: String = heights.iter().map(|height| EIGHTHS[height.saturating_sub(below).min(8)]).collect();
            EMPTY.to_string().repeat(cells - shown.len()) + &bars
        })
        .collect()
}

/// A line of a graph with the style of each of its cells; its dots are in the style `dim`.
pub(crate) fn styled(line: &str, style: impl Fn(usize) -> Style, dim: Style) -> Vec<Span<'static>> {
    let cells: Vec<(char, Style)> =
        line.chars().enumerate().map(|(index, cell)| (cell, if cell == EMPTY { dim } else { style(index) })).collect();
    let runs = cells.chunk_by(|one, next| one.1 == next.1);
    runs.map(|run| Span::styled(run.iter().map(|(cell, _)| *cell).collect::<String>(), run[0].1)).collect()
}

/// The end of the scale for values up to `most`: a round number.
pub(crate) fn scale_end(most: f64) -> f64 {
    if !most.is_finite() || most <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(most.log10().floor());
    [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]
        .into_iter()
        .map(|step| step * power)
        .find(|end| *end >= most)
        .unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_fill_lines_from_below() {
        let values = [Some(0.0), Some(4.0), None, Some(8.0), Some(16.0), Some(99.0)];
        assert_eq!(graph(&values, 16.0, 7, 2), ["·····██", "·▁▄·███"]);
        assert_eq!(graph(&values, 16.0, 2, 1), ["██"]);
        assert_eq!(graph(&[Some(f64::NAN), Some(1.0)], 0.0, 3, 1), ["·▁▁"]);
        assert_eq!(graph(&[], 1.0, 2, 1), ["··"]);
    }

    #[test]
    fn cells_of_a_style_are_one_span() {
        let (one, other, dim) = (Style::new().bold(), Style::new().italic(), Style::new().dim());
        let spans = styled("·▁▂█··", |index| if index < 3 { one } else { other }, dim);
        let found: Vec<_> = spans.iter().map(|span| (span.content.as_ref(), span.style)).collect();
        assert_eq!(found, [("·", dim), ("▁▂", one), ("█", other), ("··", dim)]);
    }

    #[test]
    fn scales_end_at_round_numbers() {
        let ends = [0.0, 0.03, 1.0, 1.2, 4.9, 5.1, 52.0, f64::NAN].map(scale_end);
        assert_eq!(ends, [1.0, 0.03, 1.0, 1.5, 5.0, 6.0, 60.0, 1.0]);
    }
}

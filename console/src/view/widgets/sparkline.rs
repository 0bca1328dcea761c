//! A line of bars, one per cell: the history of a figure, newest at the right end.
/// Bars from one eighth of a cell to a full cell.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The last `cells` values on a scale from `low` to `high`; a space if a value is unknown.
pub(crate) fn sparkline(values: &[Option<f64>], range: (f64, f64), cells: usize) -> String {
    let (low, high) = range;
    let shown: String = values[values.len().saturating_sub(cells)..]
        .iter()
        .map(|value: &Option<f64>| match value {
            Some(value) if value.is_finite() => {
                let share = if high > low { ((value - low) / (high - low)).clamp(0.0, 1.0) } else { 0.0 };
                BARS[((share * 7.0).round() as usize).min(7)]
            }
            _ => ' ',
        })
        .collect();
    " ".repeat(cells.saturating_sub(values.len())) + &shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_values_are_at_the_right_and_unknown_ones_are_gaps() {
        let values = [Some(0.0), Some(7.0), None, Some(3.0), Some(99.0)];
        assert_eq!(sparkline(&values, (0.0, 7.0), 6), " ▁█ ▄█");
        assert_eq!(sparkline(&values, (0.0, 7.0), 2), "▄█");
        assert_eq!(sparkline(&[Some(5.0)], (5.0, 5.0), 1), "▁");
        assert_eq!(sparkline(&[Some(f64::NAN)], (0.0, 1.0), 1), " ");
        assert_eq!(sparkline(&[], (0.0, 1.0), 2), "  ");
    }
}

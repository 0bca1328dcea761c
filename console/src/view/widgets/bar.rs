//! Stacked bars of the components of a time.
use ratatui::{style::Style, text::Span};

/// A stacked bar on a scale where `full` fills all `cells` cells. The ends of the parts are rounded, so that the parts
/// add up.
pub(crate) fn stacked(parts: &[(u64, &str, Style)], full: u64, cells: usize) -> Vec<Span<'static>> {
    let mut sum = 0;
    let mut drawn = 0;
    let mut spans = Vec::with_capacity(parts.len() + 1);
    for (part, glyph, style) in parts {
        sum += part;
        let end = common::latency::ratio(sum as f64 * cells as f64, full as f64).round() as usize;
        let end = end.min(cells);
        spans.push(Span::styled(glyph.repeat(end - drawn), *style));
        drawn = end;
    }
    spans.push(Span::raw(" ".repeat(cells - drawn)));
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_total() {
        let draw = |parts: [u64; 3], full| {
            let parts = [(parts[0], "a", Style::new()), (parts[1], "b", Style::new()), (parts[2], "c", Style::new())];
            stacked(&parts, full, 10).iter().map(|span| span.content.as_ref()).collect::<String>()
        };
        assert_eq!(draw([5, 3, 2], 10), "aaaaabbbcc");
        assert_eq!(draw([1, 1, 1], 3), "aaabbbbccc");
        assert_eq!(draw([5, 0, 0], 10), "aaaaa     ");
        assert_eq!(draw([0, 0, 0], 0), "          ");
        assert_eq!(draw([50, 50, 50], 10), "aaaaaaaaaa");
    }
}

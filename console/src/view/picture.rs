//! Exports a rendered screen as text and as an SVG image, for files and reports.
use std::fmt::Write;

use ratatui::{
    buffer::{Buffer, Cell},
    style::Modifier,
};

use crate::view::{
    colour::{Rgb, rgb},
    format::width,
};

/// Width of a cell in the image.
const CELL_WIDTH: f64 = 8.4;
/// Height of a line in the image.
const CELL_HEIGHT: f64 = 17.0;
/// Offset of the baseline in a line.
const BASE: f64 = 13.0;

/// The screen as lines of text without trailing blanks.
pub fn text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for y in buffer.area.top()..buffer.area.bottom() {
        let line: String = cells(buffer, y).map(|(_, cell, _)| cell.symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The cells of a line with their column and width, without those that a wide character covers.
fn cells(buffer: &Buffer, y: u16) -> impl Iterator<Item = (u16, &Cell, u16)> {
    let mut x = buffer.area.left();
    std::iter::from_fn(move || {
        if x >= buffer.area.right() {
            return None;
        }
        let cell = &buffer[(x, y)];
        let (place, cells) = (x, (width(cell.symbol()) as u16).max(1));
        x += cells;
        Some((place - buffer.area.left(), cell, cells))
    })
}

/// The style of a run of cells.
#[derive(Clone, Copy, PartialEq)]
struct CellLook {
    front: Rgb,
    ground: Option<Rgb>,
    modifiers: Modifier,
}

/// The screen as an SVG image. `is_light`: whether the terminal's default colours assume a light background.
pub fn svg(buffer: &Buffer, is_light: bool) -> String {
    let (front, ground): (Rgb, Rgb) = if is_light { ([36; 3], [255; 3]) } else { ([220; 3], [24; 3]) };
    let look = |cell: &Cell| {
        let (mut letters, mut back) = (rgb(cell.fg).unwrap_or(front), rgb(cell.bg));
        if cell.modifier.contains(Modifier::REVERSED) {
            (letters, back) = (back.unwrap_or(ground), Some(letters));
        }
        CellLook { front: letters, ground: back, modifiers: cell.modifier.difference(Modifier::REVERSED) }
    };
    let (across, down) = (f64::from(buffer.area.width) * CELL_WIDTH, f64::from(buffer.area.height) * CELL_HEIGHT);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {across:.1} {down:.1}\" width=\"{across:.0}\" \
         height=\"{down:.0}\" font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"14\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"{}\"/>\n",
        hex(ground)
    );
    for y in buffer.area.top()..buffer.area.bottom() {
        let mut run: Option<(u16, u16, String, CellLook)> = None;
        let top = f64::from(y - buffer.area.top()) * CELL_HEIGHT;
        for (x, cell, cells) in cells(buffer, y) {
            let look = look(cell);
            match &mut run {
                Some((_, length, text, same)) if *same == look => {
                    text.push_str(cell.symbol());
                    *length += cells;
                }
                _ => {
                    let last = run.replace((x, cells, cell.symbol().to_owned(), look));
                    last.iter().for_each(|(x, cells, text, look)| push_run(&mut svg, top, *x, *cells, text, *look));
                }
            }
        }
        run.iter().for_each(|(x, cells, text, look)| push_run(&mut svg, top, *x, *cells, text, *look));
    }
    svg.push_str("</svg>\n");
    svg
}

fn push_run(svg: &mut String, top: f64, x: u16, cells: u16, text: &str, look: CellLook) {
    let (left, across) = (f64::from(x) * CELL_WIDTH, f64::from(cells) * CELL_WIDTH);
    if let Some(ground) = look.ground {
        let fill = hex(ground);
        let _ = writeln!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{across:.1}\" height=\"{CELL_HEIGHT}\" fill=\"{fill}\"/>"
        );
    }
    if text.trim().is_empty() {
        return;
    }
    let mut style = String::new();
    for (modifier, words) in [
        (Modifier::BOLD, " font-weight=\"bold\""),
        (Modifier::DIM, " opacity=\"0.65\""),
        (Modifier::ITALIC, " font-style=\"italic\""),
        (Modifier::UNDERLINED, " text-decoration=\"underline\""),
    ] {
        style.push_str(if look.modifiers.contains(modifier) { words } else { "" });
    }
    // The text length keeps columns aligned in any font.
    let _ = writeln!(
        svg,
        "<text x=\"{left:.1}\" y=\"{:.1}\" textLength=\"{across:.1}\" lengthAdjust=\"spacingAndGlyphs\" fill=\"{}\"{style} \
         xml:space=\"preserve\">{}</text>",
        top + BASE,
        hex(look.front),
        escape(text)
    );
}

fn hex([red, green, blue]: Rgb) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use ratatui::{
        layout::Rect,
        style::{Color, Style},
    };

    use super::*;

    fn buffer() -> Buffer {
        let mut buffer = Buffer::empty(Rect { x: 0, y: 0, width: 12, height: 2 });
        buffer.set_string(0, 0, "a <b> & 日本", Style::new().fg(Color::Indexed(114)));
        buffer.set_string(0, 1, "tab", Style::new().fg(Color::Cyan).add_modifier(Modifier::REVERSED | Modifier::BOLD));
        buffer
    }

    #[test]
    fn screen_is_exported_as_lines_of_text() {
        assert_eq!(text(&buffer()), "a <b> & 日本\ntab\n");
    }

    #[test]
    fn svg_places_every_run_and_escapes_its_text() {
        let svg = svg(&buffer(), false);
        assert!(svg.contains("fill=\"#87d787\" xml:space=\"preserve\">a &lt;b&gt; &amp; 日本</text>"), "{svg}");
        assert!(svg.contains("<rect x=\"0.0\" y=\"17.0\" width=\"25.2\" height=\"17\" fill=\"#00cdcd\"/>"), "{svg}");
        assert!(svg.contains("font-weight=\"bold\" xml:space=\"preserve\">tab</text>"), "{svg}");
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    }
}

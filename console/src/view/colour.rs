//! Terminal colours as red, green and blue: for SVG images and for contrast checks.
use ratatui::style::Color;

/// Red, green, blue, each 0 to 255.
pub(super) type Rgb = [u8; 3];

/// The sixteen colours as xterm defines them; a terminal may show others.
const SIXTEEN: [Rgb; 16] = [
    [0, 0, 0],
    [205, 0, 0],
    [0, 205, 0],
    [205, 205, 0],
    [0, 0, 238],
    [205, 0, 205],
    [0, 205, 205],
    [229, 229, 229],
    [127, 127, 127],
    [255, 0, 0],
    [0, 255, 0],
    [255, 255, 0],
    [92, 92, 255],
    [255, 0, 255],
    [0, 255, 255],
    [255, 255, 255],
];

/// The RGB value of a colour; `None` for the terminal's default.
pub(super) fn rgb(colour: Color) -> Option<Rgb> {
    Some(match colour {
        Color::Reset => return None,
        Color::Rgb(red, green, blue) => [red, green, blue],
        Color::Indexed(index) => indexed(index),
        Color::Black => SIXTEEN[0],
        Color::Red => SIXTEEN[1],
        Color::Green => SIXTEEN[2],
        Color::Yellow => SIXTEEN[3],
        Color::Blue => SIXTEEN[4],
        Color::Magenta => SIXTEEN[5],
        Color::Cyan => SIXTEEN[6],
        Color::Gray => SIXTEEN[7],
        Color::DarkGray => SIXTEEN[8],
        Color::LightRed => SIXTEEN[9],
        Color::LightGreen => SIXTEEN[10],
        Color::LightYellow => SIXTEEN[11],
        Color::LightBlue => SIXTEEN[12],
        Color::LightMagenta => SIXTEEN[13],
        Color::LightCyan => SIXTEEN[14],
        Color::White => SIXTEEN[15],
    })
}

/// A colour of the 256-colour palette: sixteen, a cube of 6 by 6 by 6, and greys.
fn indexed(index: u8) -> Rgb {
    let level = |step: u8| if step == 0 { 0 } else { 55 + 40 * step };
    match index {
        0..=15 => SIXTEEN[usize::from(index)],
        16..=231 => {
            let place = index - 16;
            [level(place / 36), level(place / 6 % 6), level(place % 6)]
        }
        232..=255 => [8 + 10 * (index - 232); 3],
    }
}

/// Contrast of two colours, 1 to 21 (WCAG 2.1, "contrast ratio" and "relative luminance").
#[cfg(test)]
pub(super) fn contrast(one: Rgb, two: Rgb) -> f64 {
    let luminance = |colour: Rgb| {
        let linear = |value: u8| {
            let value = f64::from(value) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(colour[0]) + 0.7152 * linear(colour[1]) + 0.0722 * linear(colour[2])
    };
    let (one, two) = (luminance(one), luminance(two));
    (one.max(two) + 0.05) / (one.min(two) + 0.05)
}

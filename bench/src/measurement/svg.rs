//! Line charts over categories as SVG, with an axis from 0, a range for each point and a legend. Pure.

/// Colours of lines, which colour-blind readers can distinguish (Okabe and Ito).
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 560.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 310.0;

/// The value of a category, with the range of its repeats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Index of the category.
    pub at: usize,
    /// The value.
    pub value: f64,
    /// Lowest and highest repeat.
    pub range: (f64, f64),
}

/// A line.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Its points in the order of categories.
    pub points: Vec<Point>,
}

/// A graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Title above the chart.
    pub title: String,
    /// Label of the x axis.
    pub x: String,
    /// Label of the y axis, with the unit.
    pub y: String,
    /// Categories along the x axis.
    pub categories: Vec<String>,
    /// The lines.
    pub series: Vec<Series>,
}

impl Chart {
    /// The SVG document. A chart without positive values contains a message instead.
    pub fn svg(&self) -> String {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\" role=\"img\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
        );
        svg += &text(LEFT, 22.0, "start", &format!("<tspan font-weight=\"bold\">{}</tspan>", escaped(&self.title)));
        let highest = self.series.iter().flat_map(|series| &series.points).map(|point| point.range.1.max(point.value));
        let highest = highest.filter(|value| value.is_finite()).fold(0.0, f64::max);
        if highest <= 0.0 {
            svg += &text((LEFT + RIGHT) / 2.0, (TOP + BOTTOM) / 2.0, "middle", "nothing was measured for this graph");
            return svg + "</svg>\n";
        }
        let step = nice(highest / 5.0);
        let top = (highest / step).ceil() * step;
        self.axes(&mut svg, step, top);
        for (index, series) in self.series.iter().enumerate() {
            self.line(&mut svg, index, series, top);
        }
        svg + "</svg>\n"
    }

    fn x_of(&self, at: usize) -> f64 {
        let width = (RIGHT - LEFT) / self.categories.len().max(1) as f64;
        LEFT + width * (at as f64 + 0.5)
    }

    fn axes(&self, svg: &mut String, step: f64, top: f64) {
        let mut mark = 0.0;
        while mark <= top + step / 2.0 {
            let y = y_of(mark, top);
            *svg += &format!("<path d=\"M{LEFT} {y:.1}H{RIGHT}\" stroke=\"#dddddd\"/>\n");
            *svg += &text(LEFT - 6.0, y + 4.0, "end", &number(mark));
            mark += step;
        }
        for (index, category) in self.categories.iter().enumerate() {
            *svg += &text(self.x_of(index), BOTTOM + 18.0, "middle", &escaped(category));
        }
        *svg += &text((LEFT + RIGHT) / 2.0, BOTTOM + 38.0, "middle", &escaped(&self.x));
        let (x, y) = (16.0, (TOP + BOTTOM) / 2.0);
        *svg += &format!(
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" transform=\"rotate(-90 {x} {y})\">{}</text>\n",
            escaped(&self.y)
        );
        *svg += &format!("<path d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\" fill=\"none\" stroke=\"#333333\"/>\n");
    }

    fn line(&self, svg: &mut String, index: usize, series: &Series, top: f64) {
        let colour = COLOURS[index % COLOURS.len()];
        let points: Vec<&Point> = series.points.iter().filter(|point| point.value.is_finite()).collect();
        let path: Vec<String> =
            points.iter().map(|point| format!("{:.1} {:.1}", self.x_of(point.at), y_of(point.value, top))).collect();
        *svg += &format!("<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n", path.join("L"));
        for point in points {
            let (x, y) = (self.x_of(point.at), y_of(point.value, top));
            let (low, high) = (y_of(point.range.0.min(point.value), top), y_of(point.range.1.max(point.value), top));
            *svg += &format!("<path d=\"M{x:.1} {low:.1}V{high:.1}\" stroke=\"{colour}\"/>\n");
            *svg += &format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>\n");
        }
        let y = TOP + 18.0 * index as f64;
        *svg += &format!("<path d=\"M{} {y}h18\" stroke=\"{colour}\" stroke-width=\"2\"/>\n", RIGHT + 14.0);
        *svg += &text(RIGHT + 38.0, y + 4.0, "start", &escaped(&series.name));
    }
}

fn y_of(value: f64, top: f64) -> f64 {
    BOTTOM - (BOTTOM - TOP) * (value / top)
}

/// A text element; `content` is SVG, already escaped.
fn text(x: f64, y: f64, anchor: &str, content: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>\n")
}

/// The smallest of 1, 2 or 5 times a power of ten that is at least `value`.
fn nice(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= value).unwrap_or(10.0 * power)
}

/// Formats a number with about three significant digits, without fraction from 100 on.
pub fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Escapes text for SVG and HTML.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            other if other.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: &[f64]) -> Chart {
        let points = points.iter().enumerate();
        let points = points.map(|(at, value)| Point { at, value: *value, range: (0.9 * value, 1.1 * value) });
        let series = Series { name: "in 64 <b>".into(), points: points.collect() };
        let categories = ["tp1", "tp2", "tp4"].map(str::to_owned).to_vec();
        Chart { title: "a & b".into(), x: "ranks".into(), y: "ms".into(), categories, series: vec![series] }
    }

    #[test]
    fn points_are_scaled_to_the_axes_and_names_are_escaped() {
        let svg = chart(&[100.0, 60.0, 35.0]).svg();
        let heights: Vec<f64> = svg
            .match_indices("cy=\"")
            .map(|(at, key)| {
                svg[at + key.len()..].split('"').next().and_then(|text| text.parse().ok()).expect("a number")
            })
            .collect();
        assert_eq!(heights.len(), 3);
        assert!(heights.is_sorted() && heights.iter().all(|y| (TOP..=BOTTOM).contains(y)), "{heights:?}");
        assert!(svg.contains("in 64 &lt;b&gt;") && svg.contains("a &amp; b") && !svg.contains("<b>"));
        assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
        // Values of 100 to 110 need an axis up to 150 with steps of at most 50.
        assert!(svg.contains(">50.0<") && svg.contains(">100<"), "{svg}");
    }

    #[test]
    fn chart_without_values_has_a_message() {
        for points in [&[][..], &[0.0], &[f64::NAN]] {
            let svg = chart(points).svg();
            assert!(svg.contains("nothing was measured") && !svg.contains("NaN"), "{svg}");
        }
    }

    #[test]
    fn axis_steps_are_round_numbers() {
        assert_eq!([0.7, 1.0, 1.1, 22.0, 70.0].map(nice), [1.0, 1.0, 2.0, 50.0, 100.0]);
    }
}

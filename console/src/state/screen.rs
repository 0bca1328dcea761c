//! What the screen shows: page and focus, selection, scrolling, typed text, and the panels that lie over the page.
use serde::{Deserialize, Deserializer, Serialize};

use super::{editor::Editor, sampling_form::SamplingForm, tour::Tour};
use crate::keymap::{Area, Focus, Page};

/// Most panels of a page.
pub const PANELS_MAX: usize = 3;
/// Most columns of a table whose heads can be clicked.
pub const COLUMNS_MAX: usize = 24;

/// Sizes of the scrollable parts of a frame and their visible parts: the view reports them after rendering.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// The tabs of the pages in order; empty if a tab is not on the screen.
    #[serde(deserialize_with = "tabs")]
    pub tabs: [Area; Page::ALL.len()],
    /// The rows of the page's table, without its heading.
    pub table: Area,
    /// Index of its first visible row.
    pub table_first: usize,
    /// Number of its visible rows.
    pub table_height: usize,
    /// Number of wrapped lines of text.
    pub text_lines: usize,
    /// Number of visible lines of text.
    pub text_height: usize,
    /// Number of visible layers.
    pub layers_height: usize,
    /// Number of rows in the table of layers by ranks.
    pub sync_rows: usize,
    /// Number of its visible rows.
    pub sync_height: usize,
    /// Number of lines in the topology diagram.
    pub picture_lines: usize,
    /// Number of its visible lines.
    pub picture_height: usize,
    /// Number of lines in the details of a node.
    pub details_lines: usize,
    /// Number of visible lines of details.
    pub details_height: usize,
    /// Number of lines of the help page.
    pub help_lines: usize,
    /// Number of visible lines of the help page.
    pub help_height: usize,
    /// The keys in the last line; empty while it shows something else.
    #[serde(default)]
    pub footer: Area,
    /// The panels of the page that the mouse distinguishes, in the order of [`Page::panels`].
    #[serde(default)]
    pub panels: [Area; PANELS_MAX],
    /// Left edge and width of each column's head in the page's table; no width if the column is not on the screen.
    #[serde(default)]
    pub heads: [(u16, u16); COLUMNS_MAX],
}

/// Reads the tabs of a recording, also of one with other pages.
fn tabs<'de, D: Deserializer<'de>>(written: D) -> Result<[Area; Page::ALL.len()], D::Error> {
    let known: Vec<Area> = Vec::deserialize(written)?;
    let mut tabs = [Area::default(); Page::ALL.len()];
    tabs.iter_mut().zip(known).for_each(|(tab, area)| *tab = area);
    Ok(tabs)
}

/// Which part of the text is visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextScroll {
    /// The end of the text.
    Follow,
    /// The text from this line.
    At(usize),
}

/// The first visible line of each scrollable panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scroll {
    /// The table of layers by ranks on the Sync page.
    pub sync: usize,
    /// The topology diagram.
    pub picture: usize,
    /// The details of a node.
    pub details: usize,
    /// The layers of a node.
    pub layers: usize,
    /// The text.
    pub text: TextScroll,
}

/// What the screen shows.
#[derive(Clone, Debug, PartialEq)]
pub struct ScreenState {
    /// The current page and panel.
    pub focus: Focus,
    /// The first line of the help page, if it is open.
    pub help: Option<usize>,
    /// The sampling form, while it is open.
    pub form: Option<SamplingForm>,
    /// The prompt box.
    pub editor: Editor,
    /// List index of the selected node.
    pub selected: usize,
    /// Scrolling of the panels.
    pub scroll: Scroll,
    /// Extent of the last frame.
    pub extent: Extent,
    /// A message about the last key, shown until the next key.
    pub notice: Option<String>,
    /// The guided tour, while it runs.
    pub tour: Option<Tour>,
}

impl ScreenState {
    /// The first screen, with this text in the prompt box.
    pub fn new(prompt: &str) -> Self {
        Self {
            focus: Focus::first_of(if prompt.is_empty() { Page::Cluster } else { Page::Generate }),
            help: None,
            form: None,
            editor: Editor::new(prompt),
            selected: 0,
            scroll: Scroll { sync: 0, picture: 0, details: 0, layers: 0, text: TextScroll::Follow },
            extent: Extent::default(),
            notice: None,
            tour: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extent_of_a_recording_with_fewer_pages_is_read() {
        let mut written = serde_json::to_value(Extent::default()).expect("it has a JSON form");
        let tabs = written["tabs"].as_array_mut().expect("a list");
        tabs.truncate(7);
        tabs[0]["width"] = 5.into();
        written.as_object_mut().expect("an object").retain(|name, _| !matches!(name.as_str(), "heads" | "footer"));
        let extent: Extent = serde_json::from_value(written).expect("it is read");
        assert_eq!((extent.tabs[0].width, extent.tabs[8]), (5, Area::default()));
    }
}

//! Renders the state: the layout of the screen at each size. Reads the state and changes nothing.
mod ascii;
mod chart;
mod chat;
mod cluster;
mod colour;
mod compare;
mod dialog;
mod events;
mod footer;
pub mod format;
mod generate;
mod header;
mod health;
mod heat;
mod help;
mod hops;
mod lateness;
mod layers;
mod models;
mod node;
pub mod picture;
mod preferences;
mod prompt;
mod question;
mod requests;
mod sampling_form;
mod sync;
mod tables;
mod tabs;
mod text;
pub mod theme;
mod topology;
mod tour;
mod trend;
mod waterfall;
mod widgets;

use ratatui::{
    Frame, Terminal,
    backend::TestBackend,
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
};

use crate::{
    state::{Extent, Page, State},
    view::theme::Theme,
};

/// Minimum width of the terminal.
const WIDTH_MIN: u16 = 60;
/// Minimum height of the terminal.
const HEIGHT_MIN: u16 = 16;

/// Renders a frame; returns its areas and the extent of its scrollable parts.
pub fn draw(state: &State, theme: &Theme, frame: &mut Frame) -> Extent {
    let extent = draw_shown(state, theme, frame);
    theme.finish(frame.buffer_mut());
    extent
}

/// The active theme.
pub fn theme_of(state: &State) -> Theme {
    let desk = &state.shown().preferences;
    Theme::of(desk.theme).ascii(desk.is_ascii)
}

/// Renders a frame into a buffer of this size, as [`draw`] would on a terminal.
pub fn paint(state: &State, theme: &Theme, size: (u16, u16)) -> Buffer {
    let (width, height) = size;
    let mut terminal = match Terminal::new(TestBackend::new(width, height)) {
        Ok(terminal) => terminal,
        Err(never) => match never {},
    };
    let drawn = terminal.draw(|frame| {
        draw(state, theme, frame);
    });
    match drawn {
        Ok(frame) => frame.buffer.clone(),
        Err(never) => match never {},
    }
}

fn draw_shown(all: &State, theme: &Theme, frame: &mut Frame) -> Extent {
    let state = all.shown();
    let area = frame.area();
    if area.width < WIDTH_MIN || area.height < HEIGHT_MIN {
        let small = format!("{}x{} is too small: {WIDTH_MIN}x{HEIGHT_MIN} are needed", area.width, area.height);
        frame.render_widget(ratatui::text::Span::styled(small, theme.warn), area);
        return Extent::default();
    }
    let guide = tour::height(state, area);
    let rows = [2, 1].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
    let rows = rows.chain([guide, 1].map(Constraint::Length));
    let [header, tabs, page, guide, footer] = Layout::vertical(rows).areas(area);
    let mut extent = Extent::default();
    header::draw(state, theme, frame, header);
    let figures = Rect { y: header.bottom() - 1, height: 1, ..header };
    preferences::marks(state, all.frozen.as_ref().map(|frozen| (frozen, all.now)), theme, frame, figures);
    extent.tabs = tabs::draw(state, theme, frame, tabs);
    match state.screen.focus.page {
        Page::Cluster => cluster::draw(state, theme, frame, page, &mut extent),
        Page::Topology => topology::draw_page(state, theme, frame, page, &mut extent),
        Page::Sync => {
            let shown = sync::draw(state, theme, frame, page);
            (extent.sync_rows, extent.sync_height) = (shown.rows, shown.height);
            [extent.panels[0], extent.panels[1]] = shown.areas;
        }
        Page::Generate => generate::draw(state, theme, frame, page, &mut extent),
        Page::Requests => requests::draw(state, theme, frame, page, &mut extent),
        Page::Events => events::draw(state, theme, frame, page, &mut extent),
        Page::Node => node::draw(state, theme, frame, page, &mut extent),
        Page::Models => models::draw(state, theme, frame, page, &mut extent),
        Page::Chat => chat::draw(state, theme, frame, page, &mut extent),
    }
    tour::draw(state, theme, frame, guide);
    extent.footer = footer::draw(state, theme, frame, footer);
    preferences::command_line(state, theme, frame, footer);
    if let Some(first) = state.screen.help {
        (extent.help_lines, extent.help_height) = help::draw(first, state, theme, frame, area);
    }
    dialog::draw(state, theme, frame, area);
    extent
}

#[cfg(test)]
mod tests;

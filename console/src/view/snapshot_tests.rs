//! Pictures of the dashboard as stored text, at both sizes that it is made for.
//! `BRAMBLE_UPDATE_SNAPSHOTS=1 cargo test -p bramble-console` writes them anew; the difference is then for a person to read.
use std::{fs, path::PathBuf, time::Duration};

use ratatui::{Terminal, backend::TestBackend, buffer::Buffer};
use shared::{
    protocol::error::{Fault, FaultKind},
    telemetry::{Health, NodeState, health::ThrottleBits},
    units::Celsius,
};

use crate::{
    event::{AssignEvent, ClientEvent, Event, GenerateEvent},
    fixtures::{NODES, Story, address, defaults},
    keymap::{Key, KeyCode},
    state::{State, TextScroll},
    view::{draw, theme::Theme},
};

fn picture(story: &mut Story, width: u16, height: u16) -> Buffer {
    let backend = TestBackend::new(width, height);
    let mut terminal = Terminal::new(backend).expect("a test terminal has no errors");
    let mut extent = None;
    terminal
        .draw(|frame| extent = Some(draw(&story.state, &Theme::colour(), frame)))
        .expect("a test terminal has no errors");
    story.on(Event::Drawn(extent.expect("it was drawn")));
    terminal.backend().buffer().clone()
}

fn as_text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for row in 0..buffer.area.height {
        let mut line = String::new();
        let mut column = 0;
        while column < buffer.area.width {
            let symbol = buffer[(column, row)].symbol();
            line.push_str(symbol);
            // A wide character hides the cells that it covers.
            column += (crate::view::format::width(symbol) as u16).max(1);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The story's picture is the stored one, at 80x24 and at 120x40.
#[track_caller]
fn check(name: &str, story: Story) {
    check_at(name, story, &[(80, 24), (120, 40)]);
}

/// As [`check`], also at 200x60.
#[track_caller]
pub(super) fn check_all(name: &str, story: Story) {
    check_at(name, story, &[(80, 24), (120, 40), (200, 60)]);
}

/// The story's picture is the stored one at these sizes.
#[track_caller]
pub(super) fn check_at(name: &str, mut story: Story, sizes: &[(u16, u16)]) {
    for &(width, height) in sizes {
        let drawn = as_text(&picture(&mut story, width, height));
        let file =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("src/view/snapshots/{name}-{width}x{height}.txt"));
        if std::env::var_os("BRAMBLE_UPDATE_SNAPSHOTS").is_some() {
            fs::write(&file, &drawn).expect("the folder of the pictures can be written");
        }
        let stored = fs::read_to_string(&file).unwrap_or_default();
        assert!(drawn == stored, "{name} at {width}x{height} is not as stored.\ndrawn:\n{drawn}\nstored:\n{stored}");
    }
}

#[test]
fn nodes_are_dialled() {
    let mut story = Story::begin();
    let reason = "connection refused".to_owned();
    let kind = FaultKind::Unreachable { address: address(3), reason };
    story.connected(0).arrives(ClientEvent::Disconnected { node: 3, fault: Fault::new(address(3), kind) });
    check("connecting", story);
}

#[test]
fn nodes_load() {
    let mut story = Story::begin();
    story.at(10).all_connected().all_loading();
    check("loading", story);
}

#[test]
fn a_topology_is_ready() {
    check("ready", Story::ready());
}

#[test]
fn text_streams_and_layers_move() {
    check("generating", Story::generating());
}

#[test]
fn a_generation_is_finished() {
    check("finished", Story::finished());
}

#[test]
fn a_node_is_lost_and_the_request_failed() {
    check("lost", Story::lost());
}

#[test]
fn a_node_is_silent_while_another_rank_is_looked_at() {
    let mut story = Story::generating();
    story.key(KeyCode::Esc).key(KeyCode::Esc).key(KeyCode::Right).at(9000);
    for node in [0, 2, 3] {
        story.report(node, crate::fixtures::running(node, NodeState::Serving, true));
    }
    check("stale", story);
}

#[test]
fn an_assignment_is_refused() {
    let mut story = Story::begin();
    let kind = FaultKind::ModelMissing { model: "bard-q8_0.gguf".into(), folders: "/var/lib/bramble/models".into() };
    let fault = Fault::new("pi1", kind);
    story.all_connected().arrives(ClientEvent::Assign(AssignEvent::Failed(fault)));
    check("refused", story);
}

#[test]
fn nothing_was_named() {
    check("empty", Story::with(State::new(&[], None, "", defaults())));
}

#[test]
fn help_is_the_table_of_keys() {
    let mut story = Story::ready();
    story.key(KeyCode::Esc).key(KeyCode::Char('?'));
    check("help", story);
}

#[test]
fn throttled_and_slow_machines_are_flagged() {
    let mut story = Story::ready();
    let with = |node: usize, change: &dyn Fn(&mut Health)| {
        let mut report = crate::fixtures::running(node, NodeState::Ready, false);
        change(&mut report.health);
        report
    };
    story.report(
        1,
        with(1, &|health| {
            health.firmware = Some(ThrottleBits(0x5_0005));
            health.temperature = Some(Celsius(84.6));
        }),
    );
    story.report(2, with(2, &|health| health.firmware = Some(ThrottleBits(0x4_0000))));
    story.report(3, with(3, &|health| *health = Health::default()));
    check("throttled", story);
}

#[test]
fn wide_characters_and_hostile_text_keep_the_columns() {
    let mut story = Story::ready();
    story.on(Event::Paste(" 日本語のテキスト 👩‍👩‍👧 e\u{301}".repeat(6) + "\nsecond line")).key(KeyCode::Enter);
    story.generate(GenerateEvent::Started { prompt_token_ids: vec![1; 40] });
    story.token("日本語\u{1b}[2J\u{1b}[31m red?\r\n\ttab \u{7}\u{202e}end ").token("👩‍👩‍👧é".repeat(40).as_str());
    story.on(Event::Paste("ein neuer Prompt: Würde 日本\n次".to_owned()));
    check("unicode", story);
}

#[test]
fn a_terminal_that_is_too_small_says_so_and_none_is_too_odd_to_draw() {
    let mut story = Story::finished();
    assert!(as_text(&picture(&mut story, 40, 10)).starts_with("40x10 is too small: 60x16"));
    for make in
        [Story::begin, Story::ready, Story::generating, Story::finished, Story::lost, Story::degraded, Story::busy]
    {
        for (width, height) in [(1, 1), (60, 16), (61, 17), (109, 16), (110, 16), (300, 100), (79, 100), (500, 20)] {
            let mut story = make();
            picture(&mut story, width, height);
            story.key(KeyCode::Esc);
            for page in '1'..='7' {
                story.key(KeyCode::Esc).key(KeyCode::Char(page));
                picture(&mut story, width, height);
            }
            for letter in ['x', 'R'] {
                story.key(KeyCode::Char(letter));
                picture(&mut story, width, height);
                story.key(KeyCode::Esc);
            }
            story.key(KeyCode::Char('?'));
            picture(&mut story, width, height);
        }
    }
}

#[test]
fn the_text_stays_where_it_was_scrolled_to_while_more_arrives() {
    let mut story = Story::generating();
    for line in 0..50 {
        story.token(&format!("\nline {line} of many"));
    }
    let before = as_text(&picture(&mut story, 80, 24));
    assert!(before.contains("line 49 of many"), "the end is followed:\n{before}");
    story.key(KeyCode::PageUp);
    assert!(matches!(story.state.text_scroll, TextScroll::At(_)));
    let seen = |picture: String| picture.lines().filter(|line| line.contains("of many")).map(str::to_owned).collect();
    let scrolled: Vec<String> = seen(as_text(&picture(&mut story, 80, 24)));
    story.token("\nmore and more");
    let after: Vec<String> = seen(as_text(&picture(&mut story, 80, 24)));
    assert!(!scrolled.is_empty());
    assert_eq!(scrolled, after);
    story.key(KeyCode::PageDown).key(KeyCode::PageDown);
    assert_eq!(story.state.text_scroll, TextScroll::Follow);
}

#[test]
fn without_colour_no_cell_has_one() {
    for mut story in [Story::generating(), Story::lost(), Story::begin()] {
        story.on(Event::Tick { now: Duration::from_secs(60) }).on(Event::Key(Key::control('j')));
        let mut terminal = Terminal::new(TestBackend::new(120, 40)).expect("a test terminal has no errors");
        terminal
            .draw(|frame| {
                draw(&story.state, &Theme::plain(), frame);
            })
            .expect("a test terminal has no errors");
        let reset = ratatui::style::Color::Reset;
        assert!(terminal.backend().buffer().content.iter().all(|cell| cell.fg == reset && cell.bg == reset));
    }
    assert_eq!(NODES, Story::lost().state.nodes.len());
}

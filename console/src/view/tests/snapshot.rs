//! Snapshot tests of the dashboard as stored text at its supported sizes. `BRAMBLE_UPDATE_SNAPSHOTS=1 cargo test -p
//! bramble-console` rewrites the snapshots; review the diff.
use std::{fs, path::PathBuf, time::Duration};

use common::{
    fault::{Fault, FaultKind},
    units::{Celsius, Nanoseconds},
};
use ratatui::{Terminal, backend::TestBackend, buffer::Buffer};
use telemetry::{Health, NodeState, health::ThrottleBits};

use crate::{
    fixtures::{NODES, Story, address, defaults},
    keymap::{Key, KeyCode},
    state::{State, TextScroll},
    update::event::{AssignEvent, ClientEvent, Event, GenerateEvent},
    view::{draw, theme::Theme},
};

pub(super) fn picture(story: &mut Story, width: u16, height: u16) -> Buffer {
    let backend = TestBackend::new(width, height);
    let mut terminal = Terminal::new(backend).expect("a test terminal has no errors");
    let mut extent = None;
    terminal
        .draw(|frame| extent = Some(draw(&story.state, &Theme::colour(), frame)))
        .expect("a test terminal has no errors");
    story.on(Event::Drawn(extent.expect("a frame was rendered")));
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
            // A wide character hides the cell that it covers.
            column += (crate::view::format::width(symbol) as u16).max(1);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Compares the story's screen with its snapshots at 80x24 and 120x40.
#[track_caller]
fn check(name: &str, story: Story) {
    check_at(name, story, &[(80, 24), (120, 40)]);
}

/// As [`check`], also at 200x60.
#[track_caller]
pub(super) fn check_all(name: &str, story: Story) {
    check_at(name, story, &[(80, 24), (120, 40), (200, 60)]);
}

/// Compares the story's screen with its snapshots at these sizes.
#[track_caller]
pub(super) fn check_at(name: &str, mut story: Story, sizes: &[(u16, u16)]) {
    for &(width, height) in sizes {
        let drawn = as_text(&picture(&mut story, width, height));
        let file =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("src/view/snapshots/{name}-{width}x{height}.txt"));
        if std::env::var_os("BRAMBLE_UPDATE_SNAPSHOTS").is_some() {
            fs::write(&file, &drawn).expect("the snapshot folder is writable");
        }
        let stored = fs::read_to_string(&file).unwrap_or_default();
        assert!(drawn == stored, "{name} at {width}x{height} differs.\nrendered:\n{drawn}\nstored:\n{stored}");
    }
}

#[test]
fn nodes_are_connecting() {
    let mut story = Story::begin();
    let reason = "connection refused".to_owned();
    let kind = FaultKind::Unreachable { address: address(3), reason };
    story.connected(0).arrives(ClientEvent::Disconnected { node: 3, fault: Fault::new(address(3), kind) });
    check("connecting", story);
}

#[test]
fn nodes_are_loading() {
    let mut story = Story::begin();
    story.at(10).all_connected().all_loading();
    check("loading", story);
}

#[test]
fn topology_is_ready() {
    check("ready", Story::ready());
}

#[test]
fn text_and_all_reduces_stream() {
    check("generating", Story::generating());
}

#[test]
fn generation_is_finished() {
    check("finished", Story::finished());
}

#[test]
fn header_shows_the_current_network_share_after_a_request() {
    let mut story = Story::finished();
    for node in 0..NODES {
        let mut report = crate::fixtures::running(node, NodeState::Serving, true);
        report.layers.iter_mut().for_each(|sync| (sync.compute, sync.wait) = (sync.wire, Nanoseconds(0)));
        story.report(node, report);
    }
    // A report between two steps has no times.
    story.all_report(NodeState::Serving, false);
    let drawn = as_text(&picture(&mut story, 120, 40));
    assert!(drawn.lines().nth(1).is_some_and(|figures| figures.contains("network 50 %")), "{drawn}");
    assert_eq!(story.state.generation.request.network_fraction(), Some(0.4), "the request keeps its share");
}

#[test]
fn lost_node_fails_the_request() {
    check("lost", Story::lost());
}

#[test]
fn node_is_silent_while_another_rank_is_selected() {
    let mut story = Story::generating();
    story.key(KeyCode::Esc).key(KeyCode::Esc).key(KeyCode::Right).at(9000);
    for node in [0, 2, 3] {
        story.report(node, crate::fixtures::running(node, NodeState::Serving, true));
    }
    check("stale", story);
}

#[test]
fn assignment_is_refused() {
    let mut story = Story::begin();
    let kind = FaultKind::ModelMissing { model: "bard-q8_0.gguf".into(), folders: "/var/lib/bramble/models".into() };
    let fault = Fault::new("pi1", kind);
    story.all_connected().arrives(ClientEvent::Assign(AssignEvent::Failed(fault)));
    check("refused", story);
}

#[test]
fn no_node_was_named() {
    check("empty", Story::with(State::new(&[], None, "", defaults())));
}

#[test]
fn help_shows_the_table_of_keys() {
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
fn small_terminal_shows_a_message_and_odd_sizes_render() {
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
fn scrolled_text_stays_in_place_while_more_arrives() {
    let mut story = Story::generating();
    for line in 0..50 {
        story.token(&format!("\nline {line} of many"));
    }
    let before = as_text(&picture(&mut story, 80, 24));
    assert!(before.contains("line 49 of many"), "the end is followed:\n{before}");
    story.key(KeyCode::PageUp);
    assert!(matches!(story.state.screen.scroll.text, TextScroll::At(_)));
    let seen = |picture: String| picture.lines().filter(|line| line.contains("of many")).map(str::to_owned).collect();
    let scrolled: Vec<String> = seen(as_text(&picture(&mut story, 80, 24)));
    story.token("\nmore and more");
    let after: Vec<String> = seen(as_text(&picture(&mut story, 80, 24)));
    assert!(!scrolled.is_empty());
    assert_eq!(scrolled, after);
    story.key(KeyCode::PageDown).key(KeyCode::PageDown);
    assert_eq!(story.state.screen.scroll.text, TextScroll::Follow);
}

#[test]
fn plain_theme_uses_no_colour() {
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
    assert_eq!(NODES, Story::lost().state.cluster.nodes.len());
}

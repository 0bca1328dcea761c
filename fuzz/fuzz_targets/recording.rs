//! Recordings of a dashboard: played to the end and back, drawn on every page; then keys of the viewer.
#![no_main]
use std::time::Duration;

use bramble_fuzz::folder::Folder;
use console::{
    keymap::{Key, KeyCode},
    recording::player::Player,
    update::{event::Event, update},
    view,
};
use libfuzzer_sys::{Corpus, fuzz_target};

thread_local! {
    static FOLDER: Folder = Folder::new("recording");
}

/// Between a recording and the viewer's keys.
const KEYS: &[u8] = b"\0KEYS\0";
const SIZES: [(u16, u16); 4] = [(80, 24), (60, 16), (160, 50), (20, 5)];
const SPECIAL: [KeyCode; 12] = [
    KeyCode::Enter,
    KeyCode::Esc,
    KeyCode::Tab,
    KeyCode::Backspace,
    KeyCode::Delete,
    KeyCode::Left,
    KeyCode::Right,
    KeyCode::Up,
    KeyCode::Down,
    KeyCode::PageUp,
    KeyCode::PageDown,
    KeyCode::End,
];

fuzz_target!(|data: &[u8]| -> Corpus {
    let Some((size, data)) = data.split_first() else { return Corpus::Reject };
    let end = data.windows(KEYS.len()).position(|part| part == KEYS);
    let (file, keys) = end.map_or((data, &[][..]), |end| (&data[..end], &data[end + KEYS.len()..]));
    let opened = FOLDER.with(|folder| {
        folder.fill([("session.jsonl", file)]);
        Player::open(&folder.path().join("session.jsonl"))
    });
    let Ok(mut player) = opened else { return Corpus::Keep };
    let (first, end) = player.span();
    for to in [end, first, first + (end - first) / 2, Duration::MAX] {
        player.seek(to);
        for _ in 0..64 {
            if player.work(64) {
                break;
            }
        }
    }
    let _ = (player.broken().map(ToString::to_string), player.lost(), player.checkpoints());
    let size = SIZES[usize::from(*size) % SIZES.len()];
    let mut state = player.state().shown().clone();
    for page in console::keymap::Page::ALL {
        state.screen.focus = console::keymap::Focus::first_of(page);
        let _ = view::paint(&state, &view::theme_of(&state), size);
    }
    for key in keys.iter().take(64) {
        let code = match key {
            128.. => SPECIAL[usize::from(*key) % SPECIAL.len()],
            letter => KeyCode::Char(char::from(*letter)),
        };
        let control = *key < 32;
        let code = if control { KeyCode::Char(char::from(b'a' + key % 26)) } else { code };
        let _ = update(&mut state, Event::Key(Key { control, ..Key::plain(code) }));
    }
    let _ = view::paint(&state, &view::theme_of(&state), size);
    Corpus::Keep
});

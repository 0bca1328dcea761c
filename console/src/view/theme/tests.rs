//! Tests of the themes: contrast, and distinct styles for distinct meanings.
use super::*;
use crate::{
    fixtures::Story,
    state::{Focus, Page},
    view::colour::{Rgb, contrast, rgb},
};

/// Common terminal backgrounds: black, editor greys, Nord, Solarized.
const DARK_GROUNDS: [Rgb; 4] = [[0, 0, 0], [0x1e, 0x1e, 0x1e], [0x2e, 0x34, 0x40], [0, 0x2b, 0x36]];
const LIGHT_GROUNDS: [Rgb; 3] = [[255, 255, 255], [0xee, 0xee, 0xee], [0xfd, 0xf6, 0xe3]];

#[track_caller]
fn check(name: ThemeName, grounds: &[Rgb], least: f64) {
    let theme = Theme::of(name);
    let styles = [
        ("plain", theme.plain),
        ("dim", theme.dim),
        ("accent", theme.accent),
        ("ok", theme.ok),
        ("warn", theme.warn),
        ("bad", theme.bad),
        ("tab", theme.tab),
    ];
    for (what, style) in styles {
        let front = style.fg.or(theme.ground.map(|(front, _)| front)).and_then(rgb);
        let own = style.bg.or(theme.ground.map(|(_, ground)| ground)).and_then(rgb);
        // Text without a colour of its own has the terminal's foreground, which its user chose for its background.
        let Some(front) = front else { continue };
        let selected = theme.selected.bg.and_then(rgb);
        let grounds: Vec<Rgb> = grounds.iter().copied().chain(selected).collect();
        for ground in own.map_or(grounds, |own| vec![own]) {
            let ratio = contrast(front, ground);
            assert!(ratio >= least, "{name:?}: {what} has {ratio:.1} on {ground:?}");
        }
    }
}

#[test]
fn every_meaning_is_readable_on_the_theme_backgrounds() {
    assert!((contrast([255; 3], [0; 3]) - 21.0).abs() < 1e-9);
    check(ThemeName::Dark, &DARK_GROUNDS, 4.5);
    check(ThemeName::Light, &LIGHT_GROUNDS, 4.5);
    check(ThemeName::HighContrast, &[], 7.0);
}

#[test]
fn no_two_meanings_look_alike_in_any_theme() {
    for name in ThemeName::ALL {
        let theme = Theme::of(name);
        let styles = [theme.dim, theme.accent, theme.warn, theme.bad, theme.tab];
        for (index, style) in styles.iter().enumerate() {
            assert!(!styles[..index].contains(style), "{name:?}: {style:?} means two things");
        }
    }
}

#[test]
fn ascii_mode_uses_only_ascii_on_every_page() {
    let theme = Theme::of(ThemeName::Dark).ascii(true);
    for make in [Story::begin, Story::ready, Story::generating, Story::finished, Story::lost] {
        for page in Page::ALL {
            let mut story = make();
            story.state.screen.focus = Focus::first_of(page);
            for help in [None, Some(0)] {
                story.state.screen.help = help;
                story.state.preferences.is_commanding = help.is_none();
                let buffer = crate::view::paint(&story.state, &theme, (100, 30));
                let other = buffer.content.iter().find(|cell| !cell.symbol().is_ascii());
                assert!(other.is_none(), "{page:?}: {:?}", other.map(|cell| cell.symbol()));
            }
        }
    }
}

#[test]
fn unchanged_frame_sends_no_cell() {
    let story = Story::finished();
    let theme = Theme::of(ThemeName::Dark);
    let (width, height) = (120, 40);
    let first = crate::view::paint(&story.state, &theme, (width, height));
    let second = crate::view::paint(&story.state, &theme, (width, height));
    assert_eq!(first.diff(&second).len(), 0);
}

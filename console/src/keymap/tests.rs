//! The built-in table: no key twice, letters stay free in the prompt box, keys in common notation.
use super::*;

/// Every panel of every page.
fn focuses() -> impl Iterator<Item = Focus> {
    Page::ALL.into_iter().flat_map(|page| page.panels().iter().map(move |panel| Focus { page, panel: *panel }))
}

#[test]
fn no_key_is_bound_twice_in_one_context() {
    for focus in focuses() {
        let keys: Vec<Key> = Keymap::default().bindings(focus).flat_map(|binding| binding.keys.to_vec()).collect();
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(key), "{key} is bound twice for {focus:?}");
        }
    }
}

#[test]
fn letters_are_unbound_in_the_prompt_box() {
    for key in BINDINGS.iter().flat_map(|binding| binding.keys.iter()).filter(|key| key.types()) {
        assert_eq!(Keymap::default().action(Focus::first_of(Page::Generate), *key), None, "{key} cannot be typed");
    }
}

#[test]
fn keys_display_in_common_notation() {
    assert_eq!(Key::control('c').to_string(), "Ctrl-C");
    assert_eq!(Key::with_alt(KeyCode::Enter).to_string(), "Alt-Enter");
    assert_eq!(Key::with_shift(KeyCode::Tab).to_string(), "Shift-Tab");
}

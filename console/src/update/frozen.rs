//! The frozen screen: a copy of the state that the operator can inspect while events continue to update the live state.
//! Nothing on the frozen screen can act on the cluster.
use super::update_live;
use crate::{
    keymap::{Action, AppAction},
    state::{Frozen, State},
    update::effect::Effect,
    update::event::Event,
};

/// Freezes the screen.
pub(super) fn freeze(state: &mut State) {
    let shown = Box::new(state.clone());
    state.frozen = Some(Frozen { since: state.now, events: 0, shown });
}

/// Handles an event while the screen is frozen.
pub(super) fn update_frozen(state: &mut State, event: Event) -> Vec<Effect> {
    let Some(mut frozen) = state.frozen.take() else { return update_live(state, event) };
    if thaws(&frozen, &event) {
        state.look_as(&frozen.shown);
        // Ctrl-C and q unfreeze the screen and then have their usual effect.
        let freezes = matches!(&event, Event::Key(key) if frozen.shown.preferences.keys.action(frozen.shown.screen.focus, *key) == Some(Action::App(AppAction::Freeze)));
        return if freezes { vec![Effect::Draw] } else { update_live(state, event) };
    }
    let effects = if is_for_the_screen(&event) {
        let before = frozen.shown.clone();
        let mut effects = update_live(&mut frozen.shown, event);
        if effects.iter().any(Effect::acts) {
            let thaw = before.preferences.keys.key_of(Action::App(AppAction::Freeze));
            frozen.shown = before;
            frozen.shown.operations.dialog = None;
            frozen.shown.screen.notice = Some(format!("the picture is frozen: {thaw} lets it go, then do it"));
            effects = vec![Effect::Draw];
        }
        effects
    } else {
        let seconds = |now: std::time::Duration| now.saturating_sub(frozen.since).as_secs();
        let before = seconds(state.now);
        frozen.events += u64::from(matches!(event, Event::Client(_)));
        let mut effects = update_live(state, event);
        effects.retain(|effect| *effect != Effect::Draw);
        if seconds(state.now) != before {
            effects.push(Effect::Draw);
        }
        effects
    };
    state.frozen = Some(frozen);
    effects
}

/// Whether an event unfreezes the screen: the freeze key, a key that quits or interrupts, or a signal.
fn thaws(frozen: &Frozen, event: &Event) -> bool {
    let shown = &frozen.shown;
    match event {
        Event::Key(key)
            if shown.operations.dialog.is_none()
                && !shown.preferences.is_commanding
                && shown.screen.help.is_none()
                && shown.screen.form.is_none() =>
        {
            let action = shown.preferences.keys.action(shown.screen.focus, *key);
            matches!(
                action,
                Some(Action::App(AppAction::Freeze) | Action::App(AppAction::Quit) | Action::App(AppAction::Interrupt))
            )
        }
        Event::Signal(_) => true,
        Event::Key(_)
        | Event::Resize
        | Event::Drawn(_)
        | Event::Client(_)
        | Event::Tick { .. }
        | Event::Paste(_)
        | Event::Mouse(_)
        | Event::Recording(_)
        | Event::Tour(_)
        | Event::Conversations(_)
        | Event::Said(_) => false,
    }
}

/// Whether an event changes only the arrangement of the screen, and therefore applies to the frozen screen.
fn is_for_the_screen(event: &Event) -> bool {
    match event {
        Event::Key(_) | Event::Resize | Event::Drawn(_) | Event::Paste(_) | Event::Mouse(_) | Event::Said(_) => true,
        Event::Recording(_)
        | Event::Conversations(_)
        | Event::Client(_)
        | Event::Tick { .. }
        | Event::Signal(_)
        | Event::Tour(_) => false,
    }
}

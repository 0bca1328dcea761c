//! The frozen screen: a copy of the state that the operator can inspect while events continue to update the live state.
//! Nothing on the frozen screen can act on the cluster.
use super::{desk::is_for_the_screen, update_live};
use crate::{
    keymap::Action,
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
        let freezes = matches!(&event, Event::Key(key) if frozen.shown.desk.keys.action(frozen.shown.spot, *key) == Some(Action::Freeze));
        return if freezes { vec![Effect::Draw] } else { update_live(state, event) };
    }
    let effects = if is_for_the_screen(&event) {
        let before = frozen.shown.clone();
        let mut effects = update_live(&mut frozen.shown, event);
        if effects.iter().any(Effect::acts) {
            let thaw = before.desk.keys.key_of(Action::Freeze);
            frozen.shown = before;
            frozen.shown.dialog = None;
            frozen.shown.notice = Some(format!("the picture is frozen: {thaw} lets it go, then do it"));
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
            if shown.dialog.is_none() && !shown.desk.is_commanding && shown.help.is_none() && shown.form.is_none() =>
        {
            let action = shown.desk.keys.action(shown.spot, *key);
            matches!(action, Some(Action::Freeze | Action::Quit | Action::Interrupt))
        }
        Event::Signal(_) => true,
        _ => false,
    }
}

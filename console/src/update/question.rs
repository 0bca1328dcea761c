//! The question before an assignment, and the reasons for which no operator command begins.
use crate::{
    operator::desired::DesiredTopology,
    state::{
        State,
        operation::{Dialog, Question},
    },
};

/// Asks whether to assign this topology to the nodes with these list indices, by rank.
pub(super) fn ask_assign(state: &mut State, wanted: DesiredTopology, members: Vec<usize>) {
    if refuses_looker(state) || refuses(state) {
        return;
    }
    if state.generation.request.is_sent() {
        state.screen.notice = Some("a generation runs; Esc cancels it, then assign again".to_owned());
        return;
    }
    state.operations.dialog = Some(Dialog::plain(Question::Assign { wanted, members }));
}

/// Shows a notice and returns `true` on a read-only dashboard and in a replay.
pub(super) fn refuses_looker(state: &mut State) -> bool {
    if state.readonly {
        refuse(state);
    }
    state.readonly
}

/// Explains why an action is not available here.
pub(super) fn refuse(state: &mut State) {
    let why = match (&state.preferences.replay, state.readonly) {
        (Some(_), _) => "this is a recording: nothing can be done in it",
        (None, true) => "this dashboard is read-only: start it without --readonly to act",
        (None, false) => "only a recording can be paused and searched: console replay FILE",
    };
    state.screen.notice = Some(why.to_owned());
}

/// Shows a notice and returns `true` while another operation is under way.
pub(super) fn refuses(state: &mut State) -> bool {
    let why = if state.cluster.rolling_runs() {
        "a rolling restart is under way: R pauses or stops it"
    } else if state.operations.running.is_some() {
        "something else is under way, see below; wait for its end"
    } else if state.cluster.is_assigning() {
        "an assignment is under way: A aborts it"
    } else {
        return false;
    };
    state.screen.notice = Some(why.to_owned());
    true
}

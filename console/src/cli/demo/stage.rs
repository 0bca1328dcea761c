//! The stage of the guided tour in the dashboard: sets the scene that the operator's step needs on the demo's processes,
//! and ends it when the step is left.
use std::{sync::Arc, time::Duration};

use protocol::message::Generate;
use tokio::{sync::watch, time::sleep};

use crate::cli::{
    demo::{
        Daemons,
        disturb::{Load, Slowed},
        machine::Machine,
        tour::{KILLED, SLOW},
    },
    shared::sessions::open,
};
use crate::state::tour::Scene;

/// Pause after a session with the head broke, before the next attempt to send requests.
const AGAIN: Duration = Duration::from_secs(1);

/// Sets scenes as they are requested; returns when the dashboard is closed.
pub(super) async fn play(
    daemons: &Daemons,
    machines: &[Machine],
    request: &Generate,
    mut wanted: watch::Receiver<Scene>,
) {
    let mut is_lost = false;
    loop {
        let scene = *wanted.borrow_and_update();
        // The files of a simulated machine are in a temporary folder: if that is gone, the step shows nothing.
        let _ = machines[SLOW].play(matches!(scene, Scene::Throttled | Scene::Slow));
        if is_lost != (scene == Scene::Lost) {
            let changed = if is_lost { daemons.start_again(KILLED) } else { daemons.kill(KILLED) };
            if let Err(error) = changed {
                tracing::error!("the tour cannot change pi4: {error:#}");
            }
            is_lost = !is_lost;
        }
        let _slowed = (scene == Scene::Slow).then(|| daemons.pid(SLOW)).flatten().map(Slowed::begin);
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() {
                return;
            },
            () = keep_busy(daemons, request), if scene == Scene::Slow => {}
        }
    }
}

/// Sends requests one after another, forever.
async fn keep_busy(daemons: &Daemons, request: &Generate) {
    loop {
        let addresses = &daemons.addresses()[..1];
        if let Ok(sessions) = open(addresses).await
            && let Some(head) = sessions.into_iter().next()
        {
            let _load = Load::begin(Arc::clone(&head), request.clone());
            while !head.is_broken() {
                sleep(AGAIN).await;
            }
        }
        sleep(AGAIN).await;
    }
}

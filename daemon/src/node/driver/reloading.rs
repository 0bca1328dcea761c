//! Reloads of the settings: applies those that may change at run time, and passes them on to the parts of the daemon
//! outside the driver.
use std::sync::Arc;

use tokio::sync::watch::Receiver;

use super::Driver;
use crate::{config::Config, node::machine::Patience};

impl Driver {
    /// The current settings, also after later reloads.
    pub fn settings(&self) -> Receiver<Arc<Config>> {
        self.settings.subscribe()
    }

    /// Applies settings that may change at run time; warns about the others.
    pub(super) fn reloaded(&mut self, config: Config) {
        let (config, differing) = config.reloaded(&self.context.config);
        if !differing.is_empty() {
            let (keys, keep) =
                (differing.join(", "), if differing.len() == 1 { "keeps its value" } else { "keep their values" });
            tracing::warn!("{keys} {keep} until this node is restarted (console restart NODE)");
        }
        self.node.set_patience(patience(&config));
        self.reports.health.watch_disks(config.watched_folders());
        let config = Arc::new(config);
        self.settings.send_replace(Arc::clone(&config));
        self.context.config = config;
        tracing::info!("settings reloaded; threads and liveness take effect with the next assignment");
        self.supervisor.ready(&self.status());
    }
}

/// The time limits of the node.
pub(super) fn patience(config: &Config) -> Patience {
    Patience { lease: config.lease, drain: config.drain }
}

//! Settings that only a restart changes: parts of the daemon copy them when it starts.
use super::Config;
use crate::gateway::GatewaySettings;

impl Config {
    /// These settings with the values of `old` for those that only a restart changes, and the keys of the ones that differ.
    pub fn reloaded(self, old: &Self) -> (Self, Vec<&'static str>) {
        let (new, now) = (&self.recovery, &old.recovery);
        // That of recovery.
        let http = GatewaySettings { recovers: old.http.recovers, ..self.http.clone() };
        let differences = [
            ("listen", self.listen != old.listen),
            ("name", self.name != old.name),
            ("state", self.state != old.state),
            ("log_dir", self.log_dir != old.log_dir),
            ("kv_store", self.kv_store != old.kv_store),
            ("mdns", self.mdns != old.mdns),
            ("insecure", self.insecure != old.insecure),
            ("recover", new.enabled != now.enabled),
            ("exclude_after_ms", new.exclude_after != now.exclude_after),
            ("exclude_slow_ms", new.exclude_slow != now.exclude_slow),
            ("rebalance_after_ms", new.rebalance_after != now.rebalance_after),
            ("retry_slow_ms", new.retry_slow != now.retry_slow),
            ("witness", new.witness != now.witness),
            ("http, peers and other settings of the HTTP API", http != old.http),
        ];
        let differing = differences.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect();
        let Self { listen, name, state, log_dir, kv_store, mdns, insecure, recovery, http, .. } = old.clone();
        (Self { listen, name, state, log_dir, kv_store, mdns, insecure, recovery, http, ..self }, differing)
    }
}

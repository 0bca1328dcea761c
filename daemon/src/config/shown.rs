//! The effective settings in the format of the configuration file, for remote display. Secrets are omitted.
use std::{fmt::Write, time::Duration};

use toml::Value;

use super::Config;

/// Placeholder of a secret.
const LEFT_OUT: &str = "(left out)";

fn milliseconds(time: Duration) -> Value {
    Value::Integer(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}

fn texts(texts: impl Iterator<Item = String>) -> Value {
    Value::Array(texts.map(Value::String).collect())
}

impl Config {
    /// Settings as TOML; each API key appears as a placeholder.
    pub fn shown(&self) -> String {
        let path = |path: &std::path::Path| Value::String(path.display().to_string());
        let number = |number: u64| Value::Integer(i64::try_from(number).unwrap_or(i64::MAX));
        let http = &self.http;
        let listen = http.listen.map_or("off".to_owned(), |address| address.to_string());
        let links = format!("{:?}", self.data_links).to_lowercase();
        let settings = [
            ("listen", Some(Value::String(self.listen.to_string()))),
            ("name", Some(Value::String(self.name.clone()))),
            ("models", Some(texts(self.models.iter().map(|folder| folder.display().to_string())))),
            ("state", Some(path(&self.state))),
            ("threads", self.threads.map(|threads| number(threads.into()))),
            ("log_dir", self.log_dir.as_deref().map(path)),
            ("memory_max_mib", self.memory_max.map(|bytes| number(bytes >> 20))),
            ("packed_shards", Some(Value::Boolean(self.packed_shards))),
            ("experts_on_disk", Some(Value::Boolean(self.experts_on_disk))),
            ("kv_store", Some(Value::String(self.kv_store.setting.name().into()))),
            ("kv_store_max_mib", self.kv_store.bytes_max.map(|bytes| number(bytes >> 20))),
            ("kv_copies", Some(Value::Boolean(self.kv_store.copies))),
            ("speculative", Some(Value::Boolean(self.speculative))),
            ("mdns", Some(Value::Boolean(self.mdns))),
            ("prefill_elsewhere_from", Some(number(self.prefill_elsewhere_from.into()))),
            ("heartbeat_ms", Some(milliseconds(self.liveness.heartbeat))),
            ("silent_ms", Some(milliseconds(self.liveness.silent))),
            ("stall_ms", Some(milliseconds(self.liveness.stall))),
            ("drain_ms", Some(milliseconds(self.drain))),
            ("lease_ms", Some(milliseconds(self.lease))),
            ("recover", Some(Value::Boolean(self.recovery.enabled))),
            ("exclude_after_ms", Some(self.recovery.exclude_after.map_or(Value::Integer(0), milliseconds))),
            ("exclude_slow_ms", Some(self.recovery.exclude_slow.map_or(Value::Integer(0), milliseconds))),
            ("rebalance_after_ms", Some(self.recovery.rebalance_after.map_or(Value::Integer(0), milliseconds))),
            ("retry_slow_ms", Some(self.recovery.retry_slow.map_or(Value::Integer(0), milliseconds))),
            ("witness", self.recovery.witness.clone().map(Value::String)),
            ("key_file", Some(path(&self.key_file))),
            ("data_links", Some(Value::String(links))),
            ("insecure", Some(Value::Boolean(self.insecure))),
            ("http", Some(Value::String(listen))),
            ("api_keys", Some(texts(http.keys.iter().map(|_| LEFT_OUT.to_owned())))),
            ("operator_api_keys", Some(texts(http.operator_keys.iter().map(|_| LEFT_OUT.to_owned())))),
            ("unload_after_s", Some(number(http.unload_after.map_or(0, u64::from)))),
            ("http_hosts", Some(texts(http.hosts.iter().cloned()))),
            ("http_origins", Some(texts(http.origins.iter().cloned()))),
            ("peers", Some(texts(http.peers.iter().cloned()))),
            ("http_queue", Some(number(http.queue as u64))),
            ("http_queue_ms", Some(milliseconds(http.queue_wait))),
            ("http_resume_ms", Some(milliseconds(http.resume_wait))),
            ("http_request_ms", Some(milliseconds(http.request_max))),
        ];
        settings.into_iter().filter_map(|(key, value)| Some((key, value?))).fold(
            String::new(),
            |mut text, (key, value)| {
                writeln!(text, "{key} = {value}").expect("a string takes all");
                text
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, DaemonArguments, File};

    #[test]
    fn shown_settings_are_a_valid_file_without_secrets() {
        let text = "name = \"pi1\"\nhttp = \"127.0.0.1:9980\"\napi_keys = [\"sk-0123456789\"]\nthreads = 3\nhttp_hosts = [\"llm.example.org\"]\nhttp_origins = [\"https://chat.example.org\"]\nmemory_max_mib = 7\nkv_store = \"on\"\nkv_store_max_mib = 70\nexclude_after_ms = 0\n";
        let config =
            Config::merge(DaemonArguments::default(), toml::from_str(text).expect("a file")).expect("it is good");
        let shown = config.shown();
        assert!(!shown.contains("sk-0123456789") && shown.contains("(left out)"), "{shown}");
        let file: File =
            toml::from_str(&shown.replace("(left out)", "sk-0123456789")).expect("it is a file of settings");
        assert_eq!(Config::merge(DaemonArguments::default(), file).expect("it is good"), config);
    }
}

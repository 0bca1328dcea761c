//! Which servers of the HTTP API a command speaks to, and with which key.
use std::time::Duration;

use clap::Args;

use super::Failure;
use crate::http::{self, Api, HttpError, Url};

/// Servers and key.
#[derive(Clone, Debug, Args)]
pub(super) struct Endpoint {
    /// HTTP API of a node: http://HOST[:PORT] (9980); of several by commas the next is asked where one is away
    #[arg(long, value_delimiter = ',', value_name = "URL,..", value_parser = url)]
    pub(super) url: Vec<Url>,
    /// Key of the HTTP API
    #[arg(long, env = "BRAMBLE_API_KEY", hide_env_values = true, value_name = "KEY", value_parser = key)]
    api_key: Option<String>,
    /// Longest silence of the HTTP API, in seconds: a long prompt and a queue are silent, too
    #[arg(long, default_value_t = 300, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

fn url(text: &str) -> Result<Url, String> {
    text.parse().map_err(|error: HttpError| format!("{error}; {}", error.next()))
}

fn key(text: &str) -> Result<String, String> {
    let fits = (1..=1024).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    if fits { Ok(text.into()) } else { Err("1 to 1024 printable characters without space".into()) }
}

impl Endpoint {
    /// The servers in the order in which they are asked.
    pub(super) fn apis(&self) -> Vec<Api> {
        self.url.iter().map(|url| Api::new(url.clone(), self.api_key.clone())).collect()
    }

    /// How long a server may be silent.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// The model that was named, or the first that is served.
    pub(super) async fn model(&self, apis: &[Api], named: Option<&str>) -> Result<String, Failure> {
        if let Some(name) = named {
            return Ok(name.into());
        }
        Ok(http::model(apis, self.patience().min(Duration::from_secs(10))).await?)
    }
}

//! The options for servers of the HTTP API.
use std::time::Duration;

use clap::Args;

use crate::cli::Failure;
use crate::http::{self, Api, HttpError, Url};

/// Servers, API key and time limit.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "HTTP API")]
pub struct Endpoint {
    /// Base URL of a node's HTTP API (default port 9980); comma-separated URLs are tried in order
    #[arg(long, value_delimiter = ',', value_name = "URL,..", value_parser = url)]
    pub url: Vec<Url>,
    /// API key
    #[arg(long, hide_short_help = true, env = "BRAMBLE_API_KEY", hide_env_values = true, value_name = "KEY", value_parser = key)]
    api_key: Option<String>,
    /// Give up after this many seconds without data (queueing and long prefills count)
    #[arg(long, hide_short_help = true, default_value_t = 300, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

fn url(text: &str) -> Result<Url, String> {
    text.parse().map_err(|error: HttpError| format!("{error}; {}", error.next()))
}

fn key(text: &str) -> Result<String, String> {
    let fits = (1..=1024).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    if fits { Ok(text.into()) } else { Err("expected 1 to 1024 printable ASCII characters without spaces".into()) }
}

impl Endpoint {
    /// The servers in the order of the option.
    pub fn apis(&self) -> Vec<Api> {
        self.url.iter().map(|url| Api::new(url.clone(), self.api_key.clone())).collect()
    }

    /// Longest time to wait for data of a server.
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// The model `named`, or the first one that a server serves.
    ///
    /// # Errors
    /// No server answers, or none serves a model.
    pub async fn model(&self, apis: &[Api], named: Option<&str>) -> Result<String, Failure> {
        if let Some(name) = named {
            return Ok(name.into());
        }
        Ok(http::model(apis, self.patience().min(Duration::from_secs(10))).await?)
    }
}

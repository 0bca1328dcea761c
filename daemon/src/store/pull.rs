//! Downloads over http and https (ureq with rustls: proxies by HTTPS_PROXY, bundled root certificates). Follows a
//! limited number of redirects, resumes after broken connections, and does not trust announced lengths.
use std::{
    io::{ErrorKind, Read},
    time::{Duration, Instant},
};

use common::{digest::Sha256, fault::FaultKind, units::Bytes};
use protocol::models::{ModelFile, Step, URL_BYTES_MAX};
use ureq::{Agent, Body, http::Response, unversioned::transport::DefaultConnector};

use super::{
    Pace, PartialFile, Store, Tell,
    offer::{Inquiry, Offer, check_scheme, content_range, failed, host, is_proof},
    reach::Reach,
};

const CONNECT: Duration = Duration::from_secs(20);
const ANSWER: Duration = Duration::from_secs(60);
/// Longest silence of a server.
const SILENT: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 30 });
/// Deadline of name resolution.
const RESOLVE: Duration = Duration::from_secs(20);
/// Consecutive connections without data before the download fails.
const VAIN_MAX: u32 = 4;
/// Pause before the next connection, multiplied by the number of connections without data.
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });
/// Minimum number of bytes per window; a slower connection is closed and counts as one without data.
const LEAST: u64 = 64 << 10;
const WINDOW: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });
/// Bytes per read.
const BLOCK: usize = 256 << 10;
/// Downloads `url` as `model`; resumes an unfinished download of the same version.
///
/// # Errors
/// The server does not have the file or breaks off repeatedly, the disk is too small, the bytes do not match, or the
/// request is cancelled.
pub fn pull(
    store: &Store,
    url: &str,
    model: &str,
    sha256: Option<Sha256>,
    tell: &mut Tell<'_>,
) -> Result<ModelFile, FaultKind> {
    if url.len() > URL_BYTES_MAX {
        return Err(FaultKind::ParameterInvalid { reason: format!("the URL has more than {URL_BYTES_MAX} bytes") });
    }
    // All local checks come before the first request to a server.
    check_scheme(url, url)?;
    store.check_new(model)?;
    if sha256.is_none() && !is_proof(url) {
        let reason = "over http, anyone on the network path can change the file: use https, or add --sha256 with its \
         hash"
            .into();
        return Err(FaultKind::ParameterInvalid { reason });
    }
    let agent = agent(Reach::default());
    let mut offer = ask(&agent, url, sha256)?;
    let mut part = store.begin(model, offer.origin.clone())?;
    let mut vain = 0;
    while part.size() != Some(part.length()) {
        let before = part.length();
        let mut pace = Pace::new(tell);
        pace.at(Step::Downloading, before, part.size())?;
        match transfer(&agent, &offer, &mut part, &mut pace) {
            // If the server announces no length, the file ends with the connection.
            Ok(()) if part.size().is_none() => break,
            Ok(()) => {}
            Err(Trouble::Fatal(kind)) => return Err(kind),
            Err(Trouble::Broken(reason)) => {
                vain = if part.length() >= before + LEAST { 0 } else { vain + 1 };
                if vain >= VAIN_MAX {
                    let (length, size) =
                        (Bytes(part.length()), part.size().map_or("?".into(), |size| Bytes(size).to_string()));
                    return Err(failed(format!("{reason}; received {length} of {size} bytes")));
                }
                tracing::info!(model, bytes = part.length(), "resuming the download: {reason}");
                pause(PAUSE * vain, &part, tell)?;
                // Redirect URLs are signed for a limited time, and the file may have changed.
                let again = ask(&agent, url, sha256)?;
                if again.origin != offer.origin {
                    return Err(failed("the file on the server changed during the download"));
                }
                offer = again;
            }
        }
    }
    store.finish(part, tell)
}

/// Waits, while checking for cancellation.
fn pause(time: Duration, part: &PartialFile, tell: &mut Tell<'_>) -> Result<(), FaultKind> {
    if !tell(Step::Downloading, part.length(), part.size()) {
        return Err(FaultKind::StoreCancelled);
    }
    std::thread::sleep(time);
    Ok(())
}

pub(super) fn agent(reach: Reach) -> Agent {
    let config = Agent::config_builder()
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .timeout_connect(Some(CONNECT))
        .timeout_resolve(Some(RESOLVE))
        .timeout_recv_response(Some(ANSWER))
        .timeout_per_read(Some(SILENT))
        .timeout_per_write(Some(SILENT))
        .user_agent(concat!("bramble/", env!("CARGO_PKG_VERSION")))
        .build();
    Agent::with_parts(config, DefaultConnector::new(), reach)
}

/// Why a transfer ended early.
enum Trouble {
    /// Another connection may succeed.
    Broken(String),
    /// Retrying is useless.
    Fatal(FaultKind),
}

impl From<FaultKind> for Trouble {
    fn from(kind: FaultKind) -> Self {
        Self::Fatal(kind)
    }
}

fn get(agent: &Agent, url: &str, range: Option<String>, etag: Option<&str>) -> Result<Response<Body>, ureq::Error> {
    let mut request = agent.get(url).header("Accept-Encoding", "identity");
    if let Some(range) = range {
        request = request.header("Range", range);
        // A weak tag does not identify bytes.
        if let Some(etag) = etag.filter(|etag| !etag.starts_with("W/")) {
            request = request.header("If-Range", etag);
        }
    }
    request.call()
}

/// Requests one byte to find out whether the file exists, its final URL, its length and its hash.
pub(super) fn ask(agent: &Agent, url: &str, sha256: Option<Sha256>) -> Result<Offer, FaultKind> {
    let mut inquiry = Inquiry::new(url, sha256)?;
    loop {
        let response = retried(|| get(agent, inquiry.url(), Some("bytes=0-0".into()), None))?;
        if inquiry.take(response.status().as_u16(), response.headers())? {
            return Ok(inquiry.offer());
        }
    }
}

/// The server's answer; retries connections that fail.
fn retried(get: impl Fn() -> Result<Response<Body>, ureq::Error>) -> Result<Response<Body>, FaultKind> {
    let mut tried = 1;
    loop {
        match get() {
            Ok(response) if response.status().is_server_error() && tried < VAIN_MAX => {}
            Ok(response) => return Ok(response),
            Err(error) if tried >= VAIN_MAX => return Err(failed(error.to_string())),
            Err(ureq::Error::Io(error)) if error.kind() == ErrorKind::PermissionDenied => {
                return Err(failed(error.to_string()));
            }
            Err(ureq::Error::BadUri(reason)) => return Err(FaultKind::ParameterInvalid { reason }),
            Err(_) => {}
        }
        std::thread::sleep(PAUSE * tried);
        tried += 1;
    }
}

/// One connection: transfers from the current position until the file or the connection ends.
fn transfer(agent: &Agent, offer: &Offer, part: &mut PartialFile, pace: &mut Pace<'_, '_>) -> Result<(), Trouble> {
    if part.length() > 0 && !offer.has_ranges {
        part.restart()?;
    }
    let range = (part.length() > 0).then(|| format!("bytes={}-", part.length()));
    let response = get(agent, &offer.url, range, offer.origin.etag.as_deref());
    let mut response = response.map_err(|error| Trouble::Broken(error.to_string()))?;
    match response.status().as_u16() {
        206 => {
            let (start, total) = content_range(response.headers()).unwrap_or_default();
            if start != part.length() || (total.is_some() && total != part.size()) {
                return Err(Trouble::Fatal(failed("the server sent a different part than requested")));
            }
        }
        200 if part.length() > 0 => part.restart()?,
        200 => {}
        status => return Err(Trouble::Broken(format!("{} returned HTTP {status}", host(&offer.url)))),
    }
    let mut reader = response.body_mut().as_reader();
    let mut block = vec![0; BLOCK];
    let (mut since, mut brought) = (Instant::now(), 0);
    loop {
        let count = reader.read(&mut block).map_err(|error| Trouble::Broken(error.to_string()))?;
        if count == 0 {
            break;
        }
        part.append(&block[..count])?;
        pace.at(Step::Downloading, part.length(), part.size())?;
        brought += count as u64;
        if since.elapsed() >= WINDOW {
            if brought < LEAST {
                let seconds = WINDOW.as_secs();
                let reason = format!("{} sent less than {} in {seconds} s", host(&offer.url), Bytes(LEAST));
                return Err(Trouble::Broken(reason));
            }
            (since, brought) = (Instant::now(), 0);
        }
    }
    match part.size() {
        Some(size) if part.length() < size => Err(Trouble::Broken("the connection ended early".into())),
        _ => Ok(()),
    }
}

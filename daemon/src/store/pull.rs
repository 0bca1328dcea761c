//! Downloads over http and https (ureq with rustls: proxies by HTTPS_PROXY, bundled root certificates). Follows a
//! limited number of redirects, resumes after broken connections, and does not trust announced lengths.
use std::{
    io::{ErrorKind, Read},
    net::IpAddr,
    time::{Duration, Instant},
};

use common::{digest::Sha256, fault::FaultKind, units::Bytes};
use protocol::models::{ModelFile, Step, URL_BYTES_MAX};
use ureq::{
    Agent, Body,
    http::{HeaderMap, Response, Uri},
    unversioned::transport::DefaultConnector,
};

use super::{Origin, Pace, PartialFile, Store, Tell, reach::Reach};

const CONNECT: Duration = Duration::from_secs(20);
const ANSWER: Duration = Duration::from_secs(60);
/// Longest silence of a server.
const SILENT: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 30 });
/// Deadline of name resolution.
const RESOLVE: Duration = Duration::from_secs(20);
const REDIRECTS_MAX: usize = 8;
/// Consecutive connections without data before the download fails.
const VAIN_MAX: u32 = 4;
/// Pause before the next connection, multiplied by the number of connections without data.
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });
/// Minimum number of bytes per window; a slower connection is closed and counts as one without data.
const LEAST: u64 = 64 << 10;
const WINDOW: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });
/// Bytes per read.
const BLOCK: usize = 256 << 10;
/// Largest accepted file.
const FILE_BYTES_MAX: u64 = 1 << 42;

/// A server's description of a file.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Offer {
    /// Final URL, after all redirects.
    url: String,
    origin: Origin,
    /// Whether the server supports range requests.
    has_ranges: bool,
}

fn failed(reason: impl Into<String>) -> FaultKind {
    FaultKind::DownloadFailed { reason: reason.into() }
}

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

/// Whether the connection is authentic: over https, or from this machine.
fn is_proof(url: &str) -> bool {
    let host = host(url);
    let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    url.starts_with("https://") || host == "localhost" || literal.is_ok_and(|ip| ip.to_canonical().is_loopback())
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

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

/// Requests one byte to find out whether the file exists, its final URL, its length and its hash.
pub(super) fn ask(agent: &Agent, url: &str, sha256: Option<Sha256>) -> Result<Offer, FaultKind> {
    let mut offer = Offer { url: url.into(), ..Offer::default() };
    let (mut linked_hash, mut linked_size) = (None, None);
    for _ in 0..=REDIRECTS_MAX {
        check_scheme(url, &offer.url)?;
        let response = retried(|| get(agent, &offer.url, Some("bytes=0-0".into()), None))?;
        let headers = response.headers();
        // Hugging Face announces both for the file behind its redirect; an etag of 64 digits is its SHA-256. Over http,
        // an attacker could replace the tag along with the bytes.
        let tag = header(headers, "x-linked-etag").filter(|_| is_proof(&offer.url));
        let quoted = tag.map(|tag| tag.trim_start_matches("W/").trim_matches('"'));
        linked_hash = quoted.and_then(|tag| tag.parse::<Sha256>().ok()).or(linked_hash);
        linked_size = header(headers, "x-linked-size").and_then(|size| size.parse::<u64>().ok()).or(linked_size);
        match response.status().as_u16() {
            200 | 206 => {
                let size = size(&response)?;
                if let (Some(linked), Some(size)) = (linked_size, size)
                    && linked != size
                {
                    return Err(failed(format!("the server announced {linked} bytes, then {size}")));
                }
                offer.has_ranges = response.status().as_u16() == 206;
                offer.origin = Origin {
                    size: size.or(linked_size),
                    sha256: sha256.or(linked_hash).map(|hash| hash.to_string()),
                    etag: header(headers, "etag").map(str::to_owned),
                };
                return Ok(offer);
            }
            301 | 302 | 303 | 307 | 308 => offer.url = target(&offer.url, header(headers, "location"))?,
            401 | 403 => {
                return Err(failed(format!(
                    "{} is not publicly accessible (HTTP {})",
                    host(&offer.url),
                    response.status().as_u16()
                )));
            }
            404 | 410 => {
                return Err(failed(format!(
                    "{} has no such file (HTTP {})",
                    host(&offer.url),
                    response.status().as_u16()
                )));
            }
            status => return Err(failed(format!("{} returned HTTP {status}", host(&offer.url)))),
        }
    }
    Err(failed(format!("more than {REDIRECTS_MAX} redirects")))
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

/// Allows http and https, but never from https to http.
pub(super) fn check_scheme(first: &str, url: &str) -> Result<(), FaultKind> {
    match (first.starts_with("https://"), url) {
        (_, url) if url.starts_with("https://") => Ok(()),
        (false, url) if url.starts_with("http://") => Ok(()),
        (true, url) if url.starts_with("http://") => Err(failed("a redirect from https to http")),
        _ => Err(FaultKind::ParameterInvalid { reason: "the URL must begin with https:// or http://".into() }),
    }
}

fn host(url: &str) -> String {
    url.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_owned)).unwrap_or_else(|| "the server".into())
}

/// The target of a redirect: a URL, or a path on the same server.
fn target(from: &str, location: Option<&str>) -> Result<String, FaultKind> {
    let location =
        location.filter(|to| to.len() <= URL_BYTES_MAX).ok_or_else(|| failed("the redirect has no target"))?;
    if location.contains("://") {
        return Ok(location.into());
    }
    let uri: Uri = from.parse().map_err(|_| failed("invalid URL"))?;
    let (scheme, authority) =
        (uri.scheme_str().unwrap_or("https"), uri.authority().map_or("", |authority| authority.as_str()));
    let location = location.strip_prefix("//").map_or_else(|| location.to_owned(), |rest| format!("{scheme}://{rest}"));
    match location.strip_prefix('/') {
        Some(path) => Ok(format!("{scheme}://{authority}/{path}")),
        None if location.contains("://") => Ok(location),
        None => Err(failed(format!("invalid redirect to {location:?}"))),
    }
}

/// Size of the complete file.
fn size(response: &Response<Body>) -> Result<Option<u64>, FaultKind> {
    let headers = response.headers();
    let size = if response.status().as_u16() == 206 {
        let (_, total) =
            content_range(headers).ok_or_else(|| failed("partial content without a valid Content-Range"))?;
        total
    } else {
        header(headers, "content-length").and_then(|length| length.parse().ok())
    };
    match size {
        Some(size) if size > FILE_BYTES_MAX => Err(failed(format!("the server announced a file of {}", Bytes(size)))),
        size => Ok(size),
    }
}

/// `bytes 7-99/100`: the start of the part, and the size of the complete file.
fn content_range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let (range, total) = header(headers, "content-range")?.strip_prefix("bytes ")?.split_once('/')?;
    let start = range.split('-').next()?.parse().ok()?;
    if total == "*" { Some((start, None)) } else { Some((start, Some(total.parse().ok()?))) }
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

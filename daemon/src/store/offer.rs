//! What servers answer when they are asked for a file: redirects, length, hash and whether they can resume. Trusts no
//! announced number. Pure.
use std::net::IpAddr;

use common::{digest::Sha256, fault::FaultKind, units::Bytes};
use protocol::models::URL_BYTES_MAX;
use ureq::http::{HeaderMap, Uri};

use super::Origin;

const REDIRECTS_MAX: usize = 8;
/// Largest accepted file.
const FILE_BYTES_MAX: u64 = 1 << 42;

/// A server's description of a file.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Offer {
    /// Final URL, after all redirects.
    pub(super) url: String,
    pub(super) origin: Origin,
    /// Whether the server supports range requests.
    pub(super) has_ranges: bool,
}

/// The question for a file, from its URL along redirects to the server that has it.
#[derive(Debug)]
pub struct Inquiry {
    first: String,
    /// Known before.
    sha256: Option<Sha256>,
    /// Announced on the way.
    linked_hash: Option<Sha256>,
    linked_size: Option<u64>,
    redirects: usize,
    offer: Offer,
}

impl Inquiry {
    /// Begins at `url`.
    ///
    /// # Errors
    /// It is not an address of the web.
    pub fn new(url: &str, sha256: Option<Sha256>) -> Result<Self, FaultKind> {
        check_scheme(url, url)?;
        let offer = Offer { url: url.into(), ..Offer::default() };
        Ok(Self { first: url.into(), sha256, linked_hash: None, linked_size: None, redirects: 0, offer })
    }

    /// Whom to ask next.
    pub fn url(&self) -> &str {
        &self.offer.url
    }

    /// Takes the answer there: true if it is the last one.
    ///
    /// # Errors
    /// There is no such file, the announcements contradict each other, or a redirect is not followed.
    pub fn take(&mut self, status: u16, headers: &HeaderMap) -> Result<bool, FaultKind> {
        // Hugging Face announces both for the file behind its redirect; an etag of 64 digits is its SHA-256. Over http,
        // an attacker could replace the tag along with the bytes.
        let tag = header(headers, "x-linked-etag").filter(|_| is_proof(&self.offer.url));
        let quoted = tag.map(|tag| tag.trim_start_matches("W/").trim_matches('"'));
        self.linked_hash = quoted.and_then(|tag| tag.parse::<Sha256>().ok()).or(self.linked_hash);
        self.linked_size =
            header(headers, "x-linked-size").and_then(|size| size.parse::<u64>().ok()).or(self.linked_size);
        match status {
            200 | 206 => {
                let size = size(status, headers)?;
                if let (Some(linked), Some(size)) = (self.linked_size, size)
                    && linked != size
                {
                    return Err(failed(format!("the server announced {linked} bytes, then {size}")));
                }
                self.offer.has_ranges = status == 206;
                self.offer.origin = Origin {
                    size: size.or(self.linked_size),
                    sha256: self.sha256.or(self.linked_hash).map(|hash| hash.to_string()),
                    etag: header(headers, "etag").map(str::to_owned),
                };
                Ok(true)
            }
            301 | 302 | 303 | 307 | 308 => {
                self.redirects += 1;
                if self.redirects > REDIRECTS_MAX {
                    return Err(failed(format!("more than {REDIRECTS_MAX} redirects")));
                }
                self.offer.url = target(&self.offer.url, header(headers, "location"))?;
                check_scheme(&self.first, &self.offer.url).map(|()| false)
            }
            401 | 403 => Err(failed(format!("{} is not publicly accessible (HTTP {status})", host(&self.offer.url)))),
            404 | 410 => Err(failed(format!("{} has no such file (HTTP {status})", host(&self.offer.url)))),
            status => Err(failed(format!("{} returned HTTP {status}", host(&self.offer.url)))),
        }
    }

    /// What the last server offers.
    pub(super) fn offer(self) -> Offer {
        self.offer
    }
}

pub(super) fn failed(reason: impl Into<String>) -> FaultKind {
    FaultKind::DownloadFailed { reason: reason.into() }
}

/// Whether the connection is authentic: over https, or from this machine.
pub(super) fn is_proof(url: &str) -> bool {
    let host = host(url);
    let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    url.starts_with("https://") || host == "localhost" || literal.is_ok_and(|ip| ip.to_canonical().is_loopback())
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
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

/// The host of a URL, for messages.
pub(super) fn host(url: &str) -> String {
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
fn size(status: u16, headers: &HeaderMap) -> Result<Option<u64>, FaultKind> {
    let size = if status == 206 {
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
pub(super) fn content_range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let (range, total) = header(headers, "content-range")?.strip_prefix("bytes ")?.split_once('/')?;
    let start = range.split('-').next()?.parse().ok()?;
    if total == "*" { Some((start, None)) } else { Some((start, Some(total.parse().ok()?))) }
}

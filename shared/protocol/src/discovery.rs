//! The announcement of a node over multicast DNS (RFC 6762, 6763), by which consoles find it. Announcements are not
//! authenticated: they only suggest addresses to contact.
use std::net::Ipv4Addr;

/// The service type.
pub const SERVICE: &str = "_bramble._tcp.local.";
/// Longest name of an instance in bytes (RFC 6763, 4.1.1).
pub const INSTANCE_BYTES_MAX: usize = 63;
/// Most wireless addresses of an announcement.
const WIRELESS_MAX: usize = 8;

/// Information announced in addition to address and port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcement {
    /// The node's name.
    pub name: String,
    /// Its release.
    pub build: String,
    /// Whether it already belongs to a cluster; `None` if not announced.
    pub claimed: Option<bool>,
    /// Those of its addresses that belong to wireless interfaces, which are slower than a cable.
    pub wireless: Vec<Ipv4Addr>,
}

impl Announcement {
    /// Key and value pairs of the service's text record, each within its 255 bytes.
    pub fn properties(&self) -> Vec<(&'static str, String)> {
        let mut properties = vec![("name", shortened(&self.name, 200)), ("build", shortened(&self.build, 100))];
        properties.extend(self.claimed.map(|claimed| ("claimed", if claimed { "1" } else { "0" }.into())));
        if !self.wireless.is_empty() {
            let addresses: Vec<String> = self.wireless.iter().take(WIRELESS_MAX).map(ToString::to_string).collect();
            properties.push(("wireless", addresses.join(",")));
        }
        properties
    }

    /// Reads an announcement; removes control characters.
    pub fn read<'a>(value: impl Fn(&str) -> Option<&'a str>) -> Self {
        let text = |key: &str| -> String {
            value(key).unwrap_or_default().chars().filter(|c| !c.is_control()).take(200).collect()
        };
        let claimed = match value("claimed") {
            Some("1") => Some(true),
            Some("0") => Some(false),
            _ => None,
        };
        let wireless = value("wireless").unwrap_or_default().split(',');
        let wireless = wireless.filter_map(|address| address.parse::<Ipv4Addr>().ok()).take(WIRELESS_MAX);
        Self { name: text("name"), build: text("build"), claimed, wireless: wireless.collect() }
    }

    /// The name of the instance.
    pub fn instance(&self) -> String {
        shortened(&self.name, INSTANCE_BYTES_MAX)
    }
}

/// The longest prefix of a text with at most this many bytes.
fn shortened(text: &str, bytes: usize) -> String {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text[..end].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_survives_its_text_record() {
        for claimed in [None, Some(true), Some(false)] {
            let wireless = claimed.map(|_| Ipv4Addr::new(192, 168, 1, 57)).into_iter().collect();
            let said = Announcement { name: "pi1".into(), build: "0.1.0".into(), claimed, wireless };
            let properties = said.properties();
            assert_eq!(
                Announcement::read(|key| properties
                    .iter()
                    .find(|(name, _)| *name == key)
                    .map(|(_, value)| value.as_str())),
                said
            );
        }
    }

    #[test]
    fn what_is_too_long_or_odd_is_cut() {
        let wireless = vec![Ipv4Addr::new(192, 168, 100, 200); 300];
        let long = Announcement { name: "é".repeat(300), wireless, ..Announcement::default() };
        assert!(long.properties().iter().all(|(key, value)| key.len() + 1 + value.len() <= 255));
        assert_eq!(long.instance(), "é".repeat(31));
        let odd = Announcement::read(|key| Some(if key == "claimed" { "perhaps" } else { "a\u{1b}[2Jb" }));
        assert_eq!((odd.name.as_str(), odd.claimed, odd.wireless), ("a[2Jb", None, Vec::new()));
        let many = Announcement::read(|key| (key == "wireless").then_some("10.0.0.1,fe80::1,,10.0.0.2"));
        assert_eq!(many.wireless, [1, 2].map(|last| Ipv4Addr::new(10, 0, 0, last)));
        assert_eq!(Announcement::read(|_| None), Announcement::default());
    }
}

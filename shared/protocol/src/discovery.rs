//! The announcement of a node over multicast DNS (RFC 6762, 6763), by which consoles find it. Announcements are not
//! authenticated: they only suggest addresses to contact.

/// The service type.
pub const SERVICE: &str = "_bramble._tcp.local.";
/// Longest name of an instance in bytes (RFC 6763, 4.1.1).
pub const INSTANCE_BYTES_MAX: usize = 63;

/// Information announced in addition to address and port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcement {
    /// The node's name.
    pub name: String,
    /// Its release.
    pub build: String,
    /// Whether it already belongs to a cluster; `None` if not announced.
    pub claimed: Option<bool>,
}

impl Announcement {
    /// Key and value pairs of the service's text record, each within its 255 bytes.
    pub fn properties(&self) -> Vec<(&'static str, String)> {
        let mut properties = vec![("name", shortened(&self.name, 200)), ("build", shortened(&self.build, 100))];
        properties.extend(self.claimed.map(|claimed| ("claimed", if claimed { "1" } else { "0" }.into())));
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
        Self { name: text("name"), build: text("build"), claimed }
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
            let said = Announcement { name: "pi1".into(), build: "0.1.0".into(), claimed };
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
        let long = Announcement { name: "é".repeat(300), ..Announcement::default() };
        assert!(long.properties().iter().all(|(key, value)| key.len() + 1 + value.len() <= 255));
        assert_eq!(long.instance(), "é".repeat(31));
        let odd = Announcement::read(|key| Some(if key == "claimed" { "perhaps" } else { "a\u{1b}[2Jb" }));
        assert_eq!((odd.name.as_str(), odd.claimed), ("a[2Jb", None));
        assert_eq!(Announcement::read(|_| None), Announcement::default());
    }
}

//! Removes the addresses of nodes from texts, so that a report can be shared.

/// The text with names in place of addresses. `nodes`: names and `HOST:PORT`.
pub fn without_addresses(text: &str, nodes: &[(String, String)]) -> String {
    let hosts = nodes.iter().filter_map(|(name, address)| {
        let (host, _) = address.rsplit_once(':')?;
        Some((name, host.trim_start_matches('[').trim_end_matches(']')))
    });
    let mut pairs: Vec<(&str, &str)> = nodes.iter().map(|(name, address)| (name.as_str(), address.as_str())).collect();
    // Longer ones first: an address may begin with another host.
    pairs.extend(hosts.map(|(name, host)| (name.as_str(), host)));
    pairs.sort_by_key(|(_, address)| std::cmp::Reverse(address.len()));
    pairs
        .iter()
        .filter(|(_, address)| !address.is_empty())
        .fold(text.to_owned(), |text, (name, address)| text.replace(address, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_become_names() {
        let nodes = [("pi1", "10.0.0.1:9999"), ("pi2", "10.0.0.12:9999"), ("pi3", "[fd00::3]:9999")];
        let nodes = nodes.map(|(name, address)| (name.to_owned(), address.to_owned()));
        let text = "10.0.0.12:9999 refuses 10.0.0.1, fd00::3 and [fd00::3]:9999; pi1 waits";
        assert_eq!(without_addresses(text, &nodes), "pi2 refuses pi1, pi3 and pi3; pi1 waits");
    }
}

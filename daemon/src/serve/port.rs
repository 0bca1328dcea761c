//! Finds the process that holds a port in /proc, for the error "address in use".
use std::{
    fs,
    net::{IpAddr, SocketAddr},
};

/// The process that listens on `address`, as `pid 123 (brambled)`; `None` if it cannot be seen.
pub(super) fn holder(address: SocketAddr) -> Option<String> {
    let inode = listening_inode(address)?;
    let wanted = format!("socket:[{inode}]");
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(descriptors) = fs::read_dir(entry.path().join("fd")) else { continue };
        if descriptors
            .flatten()
            .any(|descriptor| fs::read_link(descriptor.path()).is_ok_and(|link| link.as_os_str() == wanted.as_str()))
        {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            return Some(format!("process {pid} ({})", name.trim()));
        }
    }
    Some("another process (run as root to see which)".into())
}

/// The inode of the socket that listens on the address or on all addresses (/proc/net/tcp, state 0A).
fn listening_inode(address: SocketAddr) -> Option<u64> {
    let table = fs::read_to_string(if address.is_ipv4() { "/proc/net/tcp" } else { "/proc/net/tcp6" }).ok()?;
    let wanted = hexadecimal(address);
    let all = format!("{}:{:04X}", "0".repeat(wanted.find(':')?), address.port());
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields.get(3) == Some(&"0A") && fields.get(1).is_some_and(|at| *at == wanted || *at == all);
        if is_it { fields.get(9)?.parse().ok() } else { None }
    })
}

/// An address as the kernel prints it: 32-bit words in host order.
fn hexadecimal(address: SocketAddr) -> String {
    let bytes = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let ip: String =
        bytes.as_chunks::<4>().0.iter().map(|bytes| format!("{:08X}", u32::from_ne_bytes(*bytes))).collect();
    format!("{ip}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found_as_the_holder_of_its_listener() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback can be bound");
        let address = listener.local_addr().expect("a bound listener has an address");
        let found = holder(address).expect("it listens");
        assert!(found.contains(&format!("process {} ", std::process::id())), "{found}");
    }
}

//! Files that operators and programs write: the daemon's configuration, topology files, named clusters, key bindings,
//! keys, collectives tables, and the texts of the command line that have a form of their own.
#![no_main]
use bramble_fuzz::{cut::Input, folder::Folder, memory::bounded};
use clap::Parser;
use console::{client::clusters::Clusters, keymap::Keymap, operator::topology_file::TopologyFile};
use daemon::{command_line::CommandLine, config::Config};
use libfuzzer_sys::fuzz_target;
use protocol::noise::keyring;
use topology::Layout;

thread_local! {
    static FOLDER: Folder = Folder::new("files");
}

fn configuration(path: &std::path::Path) {
    let line = ["brambled".as_ref(), "--config".as_ref(), path.as_os_str()];
    let arguments = CommandLine::try_parse_from(line).expect("the line is valid");
    let Ok(config) = Config::load(arguments.settings) else { return };
    assert!(!config.name.is_empty() && config.liveness.silent >= 2 * config.liveness.heartbeat);
    assert!(config.http.listen.is_none_or(|listen| {
        listen.ip().is_loopback() || !config.http.keys.is_empty() || !config.http.operator_keys.is_empty()
    }));
}

fn topology_file(text: &str) {
    let Ok(file) = TopologyFile::parse(text) else { return };
    let written = file.text();
    let again = TopologyFile::parse(&written).expect("a topology file is read back");
    assert_eq!(again, file);
    let Ok((nodes, wanted)) = file.wanted() else { return };
    assert_eq!(wanted.layout.node_count(), nodes.len());
    assert!(wanted.weights.is_empty() || wanted.weights.len() == nodes.len());
    let _ = wanted.layout.check_nodes(nodes.len());
}

fn words(text: &str) {
    if let Ok(layout) = text.parse::<Layout>() {
        let shown = layout.to_string();
        assert_eq!(shown.parse(), Ok(layout), "{shown}");
        assert!(layout.node_count() >= 1 && layout.on(layout.node_count()).node_count() >= 1);
        for member in 0..layout.node_count().min(256) {
            let place = layout.place(common::ids::MemberIndex(member as u16));
            let _ = (layout.replica_of(common::ids::MemberIndex(member as u16)), place.step_tokens());
        }
    }
    let _ = text.parse::<topology::sizes::Quantisation>();
    let _ = text.parse::<common::precision::KvFormat>();
    let _ = text.parse::<collectives::Choice>();
    let _ = text.parse::<engine::kv_store::Part>().map(|part| {
        assert_eq!(part.to_string(), text.to_owned());
        part.hash()
    });
    let _ = text.parse::<engine::kv_store::Name>().map(|name| assert_eq!(name.to_string(), text.to_owned()));
    let _ = text.parse::<common::digest::Sha256>();
    let _ = topology::sizes::ModelSizes::known(text, topology::sizes::Quantisation::Q4KM);
    let _ = console::state::command::parse(text, &Keymap::default());
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let which = input.byte();
    let text = String::from_utf8_lossy(input.0).into_owned();
    let room = 256 * text.len() + (8 << 20);
    bounded(room, || match which % 6 {
        0 => FOLDER.with(|folder| {
            folder.fill([("config.toml", text.as_bytes())]);
            configuration(&folder.path().join("config.toml"));
        }),
        1 => topology_file(&text),
        2 => FOLDER.with(|folder| {
            folder.fill([("clusters.toml", text.as_bytes())]);
            let path = folder.path().join("clusters.toml");
            let Ok(clusters) = Clusters::read(&path) else { return };
            clusters.write(&path).expect("the folder can be written");
            assert_eq!(Clusters::read(&path).expect("it is read back"), clusters);
        }),
        3 => {
            if let Ok(keys) = Keymap::read(&text) {
                assert_eq!(Keymap::read(&text).expect("it is read again"), keys);
            }
        }
        4 => FOLDER.with(|folder| {
            folder.fill([("cluster.key", text.as_bytes())]);
            let path = folder.path().join("cluster.key");
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&path, private).expect("the file is ours");
            let Ok(held) = keyring::read(&path) else { return };
            keyring::write(&path, &held).expect("the folder can be written");
            let again = keyring::read(&path).expect("it is read back");
            assert_eq!(again.len(), held.len());
        }),
        _ => words(&text),
    });
});

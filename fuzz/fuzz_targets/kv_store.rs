//! Files with keys and values on the disk: their names, headers, and parts. A flag puts the checksums right.
#![no_main]
use std::sync::Arc;

use bramble_fuzz::{cut::Input, folder::Folder, memory::bounded};
use daemon::kv_store::KvFolder;
use engine::kv_store::{
    Name, Part, Space,
    label::{HEADER_BYTES, Kind, Label},
};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static FOLDER: Folder = Folder::new("kv");
}

/// A label whose fields are an input's bytes.
fn label(input: &mut Input<'_>) -> Label {
    let kind = if input.byte() & 1 == 0 { Kind::Block } else { Kind::State };
    let space = Space::of(&[if input.byte() & 1 == 0 { "a" } else { "b" }]);
    let part = std::array::from_fn(|_| input.byte());
    let tokens = std::array::from_fn(|_| u32::from(input.byte()));
    Label { space, before: space.beginning(), part, kind, tokens }
}

fn folder(input: Input<'_>) {
    FOLDER.with(|folder| {
        let parts = input.texts();
        // A file's name, then its content.
        let files = parts.chunks(2).filter(|two| {
            let name = &two[0];
            !name.is_empty() && name.len() < 200 && !name.contains('/') && name != "." && name != ".."
        });
        let files: Vec<_> =
            files.map(|two| (two[0].as_str(), two.get(1).map_or(&[][..], |text| text.as_bytes()))).collect();
        folder.fill(files.iter().copied());
        let bytes: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
        let room = 64 * bytes + (1 << 20);
        let Ok(opened) = bounded(room, || KvFolder::open(folder.path(), 1 << 16)) else { return };
        let (used, count) = opened.usage();
        assert!(used <= 1 << 16 && count <= files.len(), "the folder keeps to its bound");
        let list = opened.list();
        for (name, part) in &list.files {
            let part: Part = list.parts[usize::from(*part)].parse().expect("a part is read back");
            assert!(opened.size(Name(*name), &part).is_some(), "a listed file is there");
            assert!(opened.parts(Name(*name)).contains(&part));
        }
        let _ = (opened.statistics(), opened.clear());
    });
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    match input.byte() % 4 {
        0 => folder(input),
        1 => {
            let _ = Label::read(input.0);
            let label = label(&mut input);
            assert!(label.payload_of(input.0).is_none(), "a part with a wrong checksum must be refused");
        }
        2 => {
            let label = label(&mut input);
            let flip = usize::from(input.short());
            let file = [&label.header(input.0)[..], input.0].concat();
            assert_eq!(Label::read(&file), Some(label));
            assert_eq!(label.payload_of(&file), Some(input.0));
            let _ = (label.name().to_string(), label.needs());
            let part: Part = "000000160000000400000020".parse().expect("it is a part");
            let label = Label { part: part.hash(), ..label };
            let mut file = [&label.header(input.0)[..], input.0].concat();
            let store = KvFolder::in_memory(1 << 20);
            store.write(&label, &part, &Arc::new(file.clone())).expect("there is room");
            assert!(store.read(&label, &part).is_some(), "what is stored is read back");
            store.clear().expect("a store in memory can be emptied");
            let place = flip % file.len();
            file[place] ^= 1 << (flip % 8);
            store.write(&label, &part, &Arc::new(file.clone())).expect("there is room");
            assert!(store.read(&label, &part).is_none() && store.usage() == (0, 0), "a damaged file is deleted");
            assert_eq!((Label::read(&file), label.payload_of(&file)), (None, None), "every change is found");
            let _ = Label::read(&file[..place.min(HEADER_BYTES)]);
        }
        _ => {
            let parts: Vec<Part> = input.texts().iter().filter_map(|text| text.parse().ok()).collect();
            let others: Vec<&Part> = parts.iter().take(8).collect();
            // A rank's own part; those of other nodes are what they say.
            let own: Part = "000000160000000400000020".parse().expect("it is a part");
            let room = 64 * data.len() + (2 << 20);
            bounded(room, || {
                let _ = own.covered_by(Kind::Block, &others);
                let _ = own.covered_by(Kind::State, &others);
            });
        }
    }
});

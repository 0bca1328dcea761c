//! The coding rules as a test: file length, headers, permitted imports, where unsafe code is allowed, nothing left open.
use std::{fs, path::Path};

use harness::programs::root;

/// Longest source file in lines.
const LINES_MAX: usize = 500;
/// Longest header in lines.
const HEADER_MAX: usize = 8;

/// Words that a part of the tree must not contain. The first entry is its path; the paths in `except` are exempt.
struct Rule {
    room: &'static str,
    except: &'static [&'static str],
    words: &'static [&'static str],
}

const LOCKS: &[&str] = &["Mutex", "RwLock", "Condvar", "mpsc", "thread::"];

const RULES: &[Rule] = &[
    Rule { room: "console/src/state", except: &[], words: &["ratatui", "crossterm", "tokio", "Instant::now"] },
    Rule { room: "console/src/update", except: &[], words: &["ratatui", "crossterm", "tokio", "Instant::now"] },
    Rule { room: "console/src/view", except: &[], words: &["tokio", "crate::client", "&mut State"] },
    Rule {
        room: "daemon/src/node",
        except: &["daemon/src/node/driver"],
        words: &["tokio", "std::net", "std::thread", "Instant::now"],
    },
    Rule {
        room: "daemon/engine/src",
        except: &["daemon/engine/src/model", "daemon/engine/src/collective"],
        words: &["async ", "Mutex", "RwLock", "Condvar", "thread::"],
    },
    Rule { room: "daemon/engine/src/model", except: &[], words: &["async ", "std::net", "avx", "neon", "direct("] },
    Rule { room: "daemon/engine/src/collective", except: &[], words: &["async "] },
    Rule { room: "daemon/kernels/src", except: &[], words: &["async "] },
    // Code that runs for every token takes no lock and starts no thread. Exceptions: the pool locks on a panic, and the
    // cache is used while loading.
    Rule { room: "daemon/kernels/src", except: &["daemon/kernels/src/pool"], words: LOCKS },
    Rule { room: "daemon/engine/src/model", except: &["daemon/engine/src/model/packed.rs"], words: LOCKS },
    Rule { room: "daemon/engine/src/collective", except: &["daemon/engine/src/collective/tests"], words: LOCKS },
    Rule {
        room: "shared",
        except: &[
            "shared/protocol/src/connection",
            "shared/protocol/src/messages.rs",
            "shared/protocol/src/session.rs",
            "shared/assignment/src",
        ],
        words: &["tokio", "std::thread", "Instant::now"],
    },
];

/// Files that may contain unsafe code.
const UNSAFE: &[&str] = &[
    "daemon/src/health/firmware.rs",
    // A system call that no crate in use wraps.
    "daemon/src/priority.rs",
    "daemon/kernels/src/avx2.rs",
    "daemon/kernels/src/avx512.rs",
    "daemon/kernels/src/neon.rs",
    // Macros of the three files above.
    "daemon/kernels/src/panel/operations.rs",
    "daemon/kernels/src/pool/mod.rs",
    "tests/allocations/main.rs",
];

/// All Rust files below a folder, as paths relative to the repository's root.
fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("the folder can be read").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let below = path.strip_prefix(root()).expect("a file of the repository");
            found.push(below.to_string_lossy().into_owned());
        }
    }
}

/// The part of a file's code to which the rules apply, without comments.
fn code(text: &str) -> String {
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_file_follows_the_coding_rules() {
    let mut files = Vec::new();
    for folder in ["shared", "daemon", "console", "bench", "tests"] {
        sources(&root().join(folder), &mut files);
    }
    assert!(files.len() > 60, "only {} files were found", files.len());
    let mut broken = Vec::new();
    for file in &files {
        let text = fs::read_to_string(root().join(file)).expect("the file can be read");
        let code = code(&text);
        if text.lines().count() > LINES_MAX {
            broken.push(format!("{file}: more than {LINES_MAX} lines"));
        }
        let header = text.lines().take_while(|line| line.starts_with("//!")).count();
        if !(1..=HEADER_MAX).contains(&header) {
            broken.push(format!("{file}: a header of {header} lines"));
        }
        let is_program = file.ends_with("/src/main.rs") || file.contains("/src/bin/");
        if is_program && code.contains("#[test]") {
            broken.push(format!("{file}: tests of a program do not run, its manifest has `test = false`"));
        }
        let may_be_unsafe = UNSAFE.iter().any(|place| file.starts_with(place)) || file == "tests/scenarios/tidy.rs";
        if !may_be_unsafe && code.contains("unsafe ") {
            broken.push(format!("{file}: unsafe code"));
        }
        for open in ["TO\u{44}O", "FIX\u{4d}E", "todo\u{21}", "unimplemented\u{21}", "#[ign\u{6f}re"] {
            if text.contains(open) {
                broken.push(format!("{file}: {open}"));
            }
        }
        for rule in RULES {
            let applies = file.starts_with(rule.room) && !rule.except.iter().any(|except| file.starts_with(except));
            for word in rule.words.iter().filter(|word| applies && code.contains(**word)) {
                broken.push(format!("{file}: {word:?} is not allowed in {}", rule.room));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Packages that the users chose for the product.
const CHOSEN: [&str; 12] = [
    "ratatui",
    "crossterm",
    "tokio",
    "tokio-util",
    "serde",
    "toml",
    "sysinfo",
    "memmap2",
    "rayon",
    "half",
    "nix",
    "tracing-appender",
];

/// Whether a crate depends on a package and uses it outside its tests.
fn uses(package: &str, room: &str) -> bool {
    let manifest = fs::read_to_string(root().join(room).join("Cargo.toml")).expect("a crate has a manifest");
    let dependencies = manifest.split("[dependencies]").nth(1).and_then(|rest| rest.split("\n[").next());
    let is_direct = dependencies.is_some_and(|list| list.contains(&format!("\n{package}.workspace = true")));
    let mut files = Vec::new();
    sources(&root().join(room).join("src"), &mut files);
    files.retain(|file| !file.ends_with("tests.rs") && !file.contains("fixtures") && !file.contains("fake"));
    let name = format!("{}::", package.replace('-', "_"));
    let is_used = files.iter().any(|file| {
        let text = fs::read_to_string(root().join(file)).expect("the file can be read");
        code(text.split("#[cfg(test)]").next().unwrap_or_default()).contains(&name)
    });
    is_direct && is_used
}

#[test]
fn every_chosen_package_is_a_direct_dependency_in_use() {
    let crates = fs::read_dir(root().join("shared"))
        .expect("the folder can be read")
        .flatten()
        .map(|entry| format!("shared/{}", entry.file_name().to_string_lossy()));
    let rooms: Vec<String> =
        crates.chain(["daemon", "daemon/kernels", "daemon/engine", "console"].map(str::to_owned)).collect();
    for package in CHOSEN {
        assert!(rooms.iter().any(|room| uses(package, room)), "{package} is not used");
    }
}

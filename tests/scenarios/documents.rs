//! The documents as a test: links lead to files and headings, named paths exist, and README stays short.
use std::{
    fs,
    path::{Path, PathBuf},
};

use harness::programs::root;

/// Most lines of README.
const README_LINES_MAX: usize = 100;

/// Folders whose paths documents name.
const FOLDERS: [&str; 9] =
    ["bench/", "shared/", "daemon/", "console/", "tests/", "docs/", "packaging/", "systemd/", ".ci/"];

/// All documents for readers: the pages at the root, those of `docs`, and figures.
fn pages() -> Vec<(PathBuf, String)> {
    let at_root = ["README.md", "RUNBOOK.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"];
    let mut paths: Vec<PathBuf> = at_root.map(|name| root().join(name)).into();
    paths.push(root().join("bench/measurements.md"));
    let docs = fs::read_dir(root().join("docs")).expect("the folder can be read");
    let docs = docs.map(|entry| entry.expect("the folder can be read").path());
    paths.extend(docs.filter(|path| path.extension().is_some_and(|kind| kind == "md")));
    paths.sort();
    assert!(paths.len() > 12, "{paths:?}");
    paths
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).expect("the page can be read");
            (path, text)
        })
        .collect()
}

/// Anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with("## ") || line.starts_with("### "));
    headings
        .map(|heading| {
            let lower = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = lower.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.collect::<String>().replace(' ', "-")
        })
        .collect()
}

/// The links of a page that lead nowhere.
fn broken_links(page: &Path, text: &str) -> Vec<String> {
    let folder = page.parent().expect("a page lies in a folder");
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .filter(|target| !target.contains("://"))
        .filter(|target| {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { page.to_owned() } else { folder.join(file) };
            let is_found = if anchor.is_empty() {
                path.exists()
            } else {
                fs::read_to_string(&path).is_ok_and(|text| anchors(&text).iter().any(|known| known == anchor))
            };
            !is_found
        })
        .map(|target| format!("{}: {target}", page.display()))
        .collect()
}

#[test]
fn every_link_of_a_document_leads_to_a_file_and_heading() {
    let mut broken = Vec::new();
    for (path, text) in pages() {
        broken.extend(broken_links(&path, &text));
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn links_to_missing_files_and_headings_are_found() {
    let readme = root().join("README.md");
    let good = "[a](RUNBOOK.md) [b](RUNBOOK.md#keys) [c](https://example.org/x) [d](docs/install.md#ports)";
    assert_eq!(broken_links(&readme, good), Vec::<String>::new());
    for bad in ["[a](MISSING.md)", "[a](RUNBOOK.md#no-such-heading)", "[a](#no-such-heading)"] {
        assert_eq!(broken_links(&readme, bad).len(), 1, "{bad}");
    }
}

#[test]
fn every_path_that_a_document_names_exists() {
    let mut missing = Vec::new();
    for (page, text) in pages() {
        let spans = text.split('`').skip(1).step_by(2);
        // A name in capitals stands for any name.
        let wanted = spans
            .filter(|span| {
                let plain = span.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
                plain && FOLDERS.iter().any(|folder| span.starts_with(folder))
            })
            .filter(|span| {
                !span
                    .replace("README", "")
                    .replace("RUNBOOK", "")
                    .split(['/', '.'])
                    .any(|part| part.len() > 2 && part.chars().all(char::is_uppercase))
            });
        let absent = wanted.filter(|span| !root().join(span).exists());
        missing.extend(absent.map(|span| format!("{}: {span}", page.display())));
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn readme_is_short() {
    let text = fs::read_to_string(root().join("README.md")).expect("README can be read");
    let lines = text.lines().count();
    assert!(lines <= README_LINES_MAX, "README has {lines} lines; reference material belongs in docs/");
}

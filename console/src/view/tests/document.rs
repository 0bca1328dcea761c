//! Checks that the screens in RUNBOOK equal the stored snapshots. A line `<!-- screen: NAME FIRST-LAST -->`
//! names the snapshot and the lines that the code block after it must contain. `BRAMBLE_UPDATE_SNAPSHOTS=1 cargo test
//! -p bramble-console` rewrites the blocks; run it twice after the snapshots have changed.
use std::{fs, path::Path};

/// Start and end of a line that names a snapshot.
const MARK: (&str, &str) = ("<!-- screen: ", " -->");

/// The lines of a stored snapshot that a mark names.
fn lines_of(mark: &str, pictures: &Path) -> Result<Vec<String>, String> {
    let (name, range) = mark.split_once(' ').ok_or_else(|| format!("{mark:?} is not NAME FIRST-LAST"))?;
    let range = range.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    let (first, last): (usize, usize) = range.ok_or_else(|| format!("{mark:?} is not NAME FIRST-LAST"))?;
    let text = fs::read_to_string(pictures.join(format!("{name}.txt"))).map_err(|error| format!("{name}: {error}"))?;
    let lines: Vec<String> = text.lines().map(|line| line.trim_end().to_owned()).collect();
    let part = first.checked_sub(1).and_then(|first| lines.get(first..last));
    part.map(<[String]>::to_vec).ok_or_else(|| format!("{name} has no lines {first}-{last}, only {}", lines.len()))
}

/// The text with all its screens replaced by the stored ones, and the number of screens.
fn with_screens(text: &str, pictures: &Path) -> Result<(String, usize), String> {
    let (mut written, mut count) = (String::new(), 0);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        written.push_str(line);
        written.push('\n');
        let Some(mark) = line.strip_prefix(MARK.0).and_then(|rest| rest.strip_suffix(MARK.1)) else { continue };
        if lines.next() != Some("```text") {
            return Err(format!("no code block follows {line}"));
        }
        // Skip the old content.
        lines.by_ref().find(|line| *line == "```").ok_or_else(|| format!("the block after {line} does not end"))?;
        let screen = lines_of(mark, pictures)?.join("\n");
        written.push_str(&format!("```text\n{screen}\n```\n"));
        count += 1;
    }
    Ok((written, count))
}

#[test]
fn runbook_screens_equal_the_snapshots() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pictures = own.join("src/view/snapshots");
    let path = own.parent().expect("the package is in the repository").join("RUNBOOK.md");
    let text = fs::read_to_string(&path).expect("document exists");
    let (written, count) = with_screens(&text, &pictures).unwrap_or_else(|error| panic!("{error}"));
    assert!(count > 0, "it shows a screen");
    if std::env::var_os("BRAMBLE_UPDATE_SNAPSHOTS").is_some() && written != text {
        fs::write(&path, &written).expect("document is written");
    }
    let stored = fs::read_to_string(&path).expect("document exists");
    assert!(written == stored, "a screen differs from its snapshot; BRAMBLE_UPDATE_SNAPSHOTS=1 rewrites it");
}

#[test]
fn mark_without_snapshot_block_or_lines_is_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("a.txt"), "one  \ntwo\n").expect("file is written");
    let check = |text: &str| with_screens(text, folder.path());
    let good = check("x\n<!-- screen: a 1-2 -->\n```text\nold\n```\ny\n");
    assert_eq!(good, Ok(("x\n<!-- screen: a 1-2 -->\n```text\none\ntwo\n```\ny\n".into(), 1)));
    for (text, part) in [
        ("<!-- screen: b 1-2 -->\n```text\n```\n", "b"),
        ("<!-- screen: a 1-3 -->\n```text\n```\n", "no lines 1-3"),
        ("<!-- screen: a 0-1 -->\n```text\n```\n", "no lines"),
        ("<!-- screen: a -->\n```text\n```\n", "FIRST-LAST"),
        ("<!-- screen: a 1-2 -->\ntext\n", "no code block"),
        ("<!-- screen: a 1-2 -->\n```text\n", "does not end"),
    ] {
        assert!(check(text).is_err_and(|error| error.contains(part)), "{text}");
    }
}

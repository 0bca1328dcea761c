//! The rules of style as a test: type names, parameters, closures, homes of modules. A violation prints its file and line.
use harness::{
    programs::root,
    style::{Source, closures_used_once, modules_out_of_place, repeated_types, tuple_parameters},
};

#[test]
fn code_follows_the_rules_of_style() {
    let root = &root();
    let folders = ["shared", "daemon", "console", "tests", "bench"];
    let sources: Vec<Source> = folders.into_iter().flat_map(|folder| Source::all(root, folder)).collect();
    assert!(sources.len() > 500, "only {} files were found", sources.len());
    let mut violations = tuple_parameters(&sources);
    violations.extend(closures_used_once(&sources));
    violations.extend(repeated_types(&sources));
    violations.extend(modules_out_of_place(root, &sources));
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

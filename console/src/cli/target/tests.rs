//! Global and command options before and after commands, and saved clusters as the default for nodes.
use super::*;
use crate::cli::command;

fn parsed(line: &str) -> Result<Arguments, String> {
    parse(line.split(' ').map(OsString::from)).map_err(|error| error.to_string())
}

/// The paths of all runnable commands, with values for their required arguments.
fn leaves() -> Vec<(Vec<String>, Vec<String>)> {
    fn below(at: &clap::Command, path: &[String], found: &mut Vec<(Vec<String>, Vec<String>)>) {
        if !path.is_empty() && !at.is_subcommand_required_set() {
            found.push((path.to_vec(), required(at)));
        }
        for next in at.get_subcommands() {
            below(next, &[path, &[next.get_name().to_owned()]].concat(), found);
        }
    }
    let mut found = Vec::new();
    below(&command(), &[], &mut found);
    found
}

/// Values for the required arguments of a command.
fn required(command: &clap::Command) -> Vec<String> {
    let path = command.get_name();
    let words = |text: &str| text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect();
    match path {
        "adopt" => return words("x --ssh"),
        "generate" | "profile" => return words("--model m --prompt x"),
        "node" => return words("--kernels"),
        "verify" => return words("x"),
        _ => {}
    }
    let mut given = Vec::new();
    for argument in command.get_arguments().filter(|argument| argument.is_required_set()) {
        if let Some(long) = argument.get_long() {
            given.push(format!("--{long}"));
        }
        let value = match argument.get_id().as_str() {
            "request" => "pi1/1",
            "page" => "cluster",
            "topologies" => "tp1,tp2",
            "shell" => "bash",
            "to" => "a",
            _ => "x",
        };
        given.push(value.to_owned());
    }
    given
}

/// The global options of a command line.
#[derive(Debug, PartialEq)]
struct Globals {
    nodes: Vec<String>,
    cluster: Option<String>,
    key: Option<PathBuf>,
    log_dir: Option<PathBuf>,
    readonly: bool,
    insecure: bool,
    json: bool,
}

fn globals(line: &[String]) -> Globals {
    let Arguments { nodes, cluster, key, log_dir, readonly, insecure, json, .. } =
        parse(line.iter().map(OsString::from)).unwrap_or_else(|error| panic!("{line:?}: {error}"));
    Globals { nodes, cluster, key, log_dir, readonly, insecure, json }
}

#[test]
fn global_options_work_before_and_after_every_command() {
    let all = leaves();
    assert!(all.len() > 35, "{}", all.len());
    let options: [&[&str]; 7] = [
        &["--nodes", "3"],
        &["--cluster", "home"],
        &["--key", "/k"],
        &["--log-dir", "/l"],
        &["--readonly"],
        &["--insecure"],
        &["--json"],
    ];
    let known: Vec<&str> = options.iter().map(|option| option[0].trim_start_matches("--")).collect();
    let command = command();
    let ids = command.get_arguments().filter(|argument| argument.is_global_set()).filter_map(clap::Arg::get_long);
    ids.for_each(|long| assert!(known.contains(&long), "--{long} is a global option that this test does not cover"));
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    for (path, needs) in &all {
        for option in options {
            let at = |place: usize| {
                let (before, after) = path.split_at(place);
                [&owned(&["console"])[..], before, &owned(option), after, needs].concat()
            };
            let last = [owned(&["console"]), path.clone(), needs.clone(), owned(option)].concat();
            let expected = globals(&last);
            assert_ne!(
                expected,
                globals(&[owned(&["console"]), path.clone(), needs.clone()].concat()),
                "{last:?} is heard"
            );
            for place in 0..=path.len() {
                assert_eq!(globals(&at(place)), expected, "{:?}", at(place));
            }
        }
    }
}

#[test]
fn options_of_one_command_before_another_are_refused() {
    for (line, part) in [
        ("console --max-tokens 3 generate --model m --prompt x", "write: console generate --max-tokens"),
        ("console --model m generate --prompt x", "--model"),
        ("console --theme dark status", "console status has no such option"),
        ("console requests --last 3 cancel pi1/3", "--last is an option of console requests"),
    ] {
        let error = parsed(line).expect_err(line);
        assert!(error.contains(part), "{line}: {error}");
    }
    assert!(parsed("console --nodes a requests --nodes b cancel pi1/3").is_ok_and(|all| all.nodes == ["b"]));
}

#[test]
fn nodes_named_for_a_command_without_nodes_are_refused() {
    for line in ["tokenize --model m --text x", "demo", "screen keys", "chat --url http://a", "cluster list"] {
        for option in ["--nodes a,b", "--cluster home"] {
            let line = format!("console {option} {line}");
            let refused = match parsed(&line) {
                Ok(mut arguments) => resolve(&mut arguments).map_err(|failure| failure.code()),
                Err(error) => panic!("{line}: {error}"),
            };
            // `--nodes` is a number for demo; the demo itself rejects other values when it starts.
            let is_later = line == "console --nodes a,b demo";
            assert_eq!(refused, if is_later { Ok(()) } else { Err(2) }, "{line}");
        }
    }
}

#[test]
fn typed_nodes_reach_the_command() {
    for line in ["console --nodes a,b status", "console status --nodes a,b", "console node --nodes a,b show pi1"] {
        let mut arguments = parsed(line).expect(line);
        resolve(&mut arguments).map_err(|failure| failure.to_string()).expect(line);
        let Reach::Nodes(nodes, Need::Looks) = reach(&mut arguments) else { panic!("{line}") };
        assert_eq!(*nodes, ["a", "b"], "{line}");
    }
    let mut both = parsed("console --nodes a --cluster home status").expect("each is known");
    assert_eq!(resolve(&mut both).map_err(|failure| failure.code()), Err(2));
}

#[test]
fn readonly_refuses_commands_that_change_something() {
    for (line, expected) in [
        ("console --readonly node exclude pi1 --reason x --nodes a", Err(2)),
        ("console generate --readonly --model m --prompt x --nodes a", Err(2)),
        ("console model --readonly remove m --nodes a", Err(2)),
        ("console --readonly status --nodes a", Ok(())),
        ("console --readonly model list --nodes a", Ok(())),
    ] {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let arguments = parse(words.iter().cloned()).expect(line);
        assert_eq!(crate::cli::looks_only(&arguments, &words).map_err(|failure| failure.code()), expected, "{line}");
    }
}

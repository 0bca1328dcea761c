//! The language of the command line: a word and its argument. Every key action and every page is a word.
use crate::{
    keymap::{Action, Keymap, NavigateAction},
    operator::command::Removal,
    state::{
        Page, State,
        clean::clean_line,
        completion::Cycle,
        preferences::{Preferences, ThemeName},
        tables,
    },
};

/// An export format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The page's data as comma-separated values.
    Csv,
    /// The page's data as JSON.
    Json,
    /// The screen as text.
    Text,
    /// The screen as an SVG image.
    Svg,
    /// The conversation as Markdown.
    Markdown,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 5] = [Self::Csv, Self::Json, Self::Text, Self::Svg, Self::Markdown];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Json => "json",
            Self::Text => "text",
            Self::Svg => "svg",
            Self::Markdown => "markdown",
        }
    }

    /// The file name extension.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Text => "txt",
            Self::Markdown => "md",
            other => other.name(),
        }
    }
}

/// What a command does to the node that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeWord {
    /// Shows its page.
    Show,
    /// Removes it from service.
    Out(Removal),
    /// Includes it again, or uncordons it.
    In,
    /// Restarts it alone.
    Restart,
}

impl NodeWord {
    /// Words of the command line, two of which mean the same.
    const ALL: [(&str, Self); 7] = [
        ("node", Self::Show),
        ("exclude", Self::Out(Removal::Exclude)),
        ("include", Self::In),
        ("cordon", Self::Out(Removal::Cordon)),
        ("uncordon", Self::In),
        ("drain", Self::Out(Removal::Drain)),
        ("restart", Self::Restart),
    ];

    fn of(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == word).map(|(_, node)| *node)
    }
}

/// A command.
#[derive(Clone, Debug, PartialEq)]
pub enum LineCommand {
    /// Executes the action of a key.
    Act(Action),
    /// Does something to the node with this name or address.
    OnNode(NodeWord, String),
    /// Shows only rows that match this text; empty = all rows.
    Filter(String),
    /// Sorts by the column with this title, descending if `true`; `None` = the natural order.
    Sort(Option<(String, bool)>),
    /// Writes data or screen to a file; `None` = a file named by page and time.
    Export(Format, Option<String>),
    /// Loads the model with this name; empty = shows the list.
    Load(String),
    /// Starts recording the session to a file; `None` = a file named by the time.
    Record(Option<String>),
    /// Stops recording.
    StopRecording,
    /// Changes the theme.
    Theme(ThemeName),
}

/// Words with an argument, and their help texts.
pub const WORDS: [(&str, &str); 10] = [
    ("page", "NAME: show a page"),
    ("node", "NAME: show a node"),
    ("exclude", "NAME, and include, cordon, uncordon, drain: that node, after a question"),
    ("restart", "[NAME]: restart that node, or all one by one, after a question"),
    ("filter", "TEXT: rows with it; !TEXT without it; ~REGEX; nothing: all"),
    ("sort", "COLUMN [down]: sort the table; nothing: the natural order"),
    ("export", "csv|json|text|svg|markdown [FILE]: the page's data, the screen, or the conversation"),
    ("load", "[MODEL]: assign a model from the nodes' model folders, after a question"),
    ("record", "[FILE]: write the session to a file; stop: end it"),
    ("theme", "NAME: sixteen, dark, light, high-contrast, mono"),
];

/// Accepted short forms.
const ALIASES: [(&str, &str); 4] = [("q", "quit"), ("q!", "quit"), ("exit", "quit"), ("h", "help")];

/// Parses a command.
///
/// # Errors
/// The command is unknown or its argument is invalid; the message lists valid values.
pub fn parse(text: &str, keys: &Keymap) -> Result<LineCommand, String> {
    let text = text.trim();
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let rest = rest.trim();
    let word = ALIASES.iter().find(|(alias, _)| *alias == word).map_or(word, |(_, word)| word);
    match word {
        "page" => page(rest).map(|page| LineCommand::Act(Action::Navigate(NavigateAction::Show(page)))),
        "filter" => Ok(LineCommand::Filter(rest.to_owned())),
        "sort" => Ok(LineCommand::Sort(sort(rest))),
        "export" => export(rest),
        "load" => Ok(LineCommand::Load(rest.to_owned())),
        "record" if rest == "stop" => Ok(LineCommand::StopRecording),
        "record" => Ok(LineCommand::Record((!rest.is_empty()).then(|| rest.to_owned()))),
        "theme" => rest.parse().map(LineCommand::Theme).map_err(|names: String| format!("theme: {names}")),
        _ => {
            match NodeWord::of(word) {
                Some(node) if !rest.is_empty() => return Ok(LineCommand::OnNode(node, rest.to_owned())),
                // Words that are no keys' actions need a name.
                Some(NodeWord::In) => return Err(format!("{word} NAME: name the node")),
                _ if !rest.is_empty() => return Err(format!("{word} takes no argument")),
                _ => {}
            }
            if let Ok(page) = page(word) {
                return Ok(LineCommand::Act(Action::Navigate(NavigateAction::Show(page))));
            }
            let action = actions(keys).into_iter().find(|(name, _)| name == word);
            action.map(|(_, action)| LineCommand::Act(action)).ok_or_else(|| match nearest(word, keys) {
                Some(near) => format!("no command {word:?}; {near:?}? Tab shows all"),
                None => format!("no command {word:?}; Tab shows all"),
            })
        }
    }
}

fn page(name: &str) -> Result<Page, String> {
    let number = name.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    let page = Page::ALL.into_iter().find(|page| page.title().eq_ignore_ascii_case(name));
    page.or(number.and_then(|place| Page::ALL.get(place).copied())).ok_or_else(|| {
        let titles = Page::ALL.map(|page| page.title().to_lowercase());
        format!("page: one of {}", titles.join(", "))
    })
}

fn sort(rest: &str) -> Option<(String, bool)> {
    match rest.rsplit_once(char::is_whitespace) {
        _ if rest.is_empty() => None,
        Some((column, "down" | "desc")) => Some((column.trim().to_owned(), true)),
        Some((column, "up" | "asc")) => Some((column.trim().to_owned(), false)),
        _ => Some((rest.to_owned(), false)),
    }
}

fn export(rest: &str) -> Result<LineCommand, String> {
    let (format, file) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let known = Format::ALL.into_iter().find(|known| known.name() == format || known.suffix() == format);
    let format = known.ok_or_else(|| "export: csv, json, text or svg, and a file if you like".to_owned())?;
    let file = file.trim();
    Ok(LineCommand::Export(format, (!file.is_empty()).then(|| file.to_owned())))
}

/// The key actions by name, each once, except those that edit text.
fn actions(keys: &Keymap) -> Vec<(String, Action)> {
    let mut actions: Vec<(String, Action)> = Vec::new();
    for binding in keys.all().filter(|binding| binding.is_command()) {
        if !actions.iter().any(|(_, action)| *action == binding.action) {
            actions.push((binding.action.name(), binding.action));
        }
    }
    actions
}

/// Names that commands take as arguments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Names {
    /// Names of nodes.
    pub nodes: Vec<String>,
    /// Names of models that nodes are known to have.
    pub models: Vec<String>,
    /// Titles of the columns of the page's table.
    pub columns: Vec<String>,
}

impl Names {
    /// The names in the dashboard's current state.
    pub fn of(state: &State) -> Self {
        let running = state.cluster.topology().map(|(topology, _)| clean_line(&topology.model));
        let listed = state.models.list.choices.iter().map(|choice| clean_line(&choice.model));
        let columns = tables::table(state, state.screen.focus.page).map_or(&[][..], |table| table.columns);
        Self {
            nodes: state.cluster.names().into_iter().map(clean_line).collect(),
            models: running.into_iter().chain(listed).collect(),
            columns: columns.iter().map(|column| column.title.to_owned()).collect(),
        }
    }
}

/// The candidates of Tab for the text, the first one chosen; `None` if there are not several.
pub fn cycle(text: &str, desk: &Preferences, names: &Names) -> Option<Cycle> {
    let words = completions(text, desk, names);
    let before = argument_of(text).1;
    (words.len() > 1).then(|| Cycle::new(&text[..before], words))
}

/// The command's word before the part that is completed, if any, and where that part begins.
fn argument_of(text: &str) -> (Option<&str>, usize) {
    let start = text.len() - text.trim_start().len();
    match text[start..].split_once(' ') {
        Some((word, _)) => (Some(word), start + word.len() + 1),
        None => (None, start),
    }
}

/// Completions of the word under the cursor, in order.
pub fn completions(text: &str, desk: &Preferences, names: &Names) -> Vec<String> {
    let (word, begin) = argument_of(text);
    let argument = &text[begin..];
    let pages = || Page::ALL.iter().map(|page| page.title().to_lowercase());
    let mut all: Vec<String> = match word {
        None => {
            let words = WORDS.iter().map(|(word, _)| (*word).to_owned());
            let on_nodes = NodeWord::ALL.iter().map(|(word, _)| (*word).to_owned());
            let all = words.chain(on_nodes).chain(pages());
            all.chain(actions(&desk.keys).into_iter().map(|(name, _)| name)).collect()
        }
        Some("page") => pages().collect(),
        Some("theme") => ThemeName::ALL.iter().map(|theme| theme.name().to_owned()).collect(),
        Some("export") => Format::ALL.iter().map(|format| format.name().to_owned()).collect(),
        Some("record") => vec!["stop".to_owned()],
        Some("load") => names.models.clone(),
        Some("sort") => names.columns.clone(),
        Some(word) if NodeWord::of(word).is_some() => names.nodes.clone(),
        Some(_) => Vec::new(),
    };
    all.retain(|candidate| candidate.starts_with(argument));
    all.sort();
    all.dedup();
    all
}

/// The text after Tab: the only completion, otherwise the common prefix of all completions.
pub fn completed(text: &str, desk: &Preferences, names: &Names) -> Option<String> {
    let all = completions(text, desk, names);
    let first = all.first()?;
    let mut prefixes = (0..=first.len()).rev().filter_map(|length| first.get(..length));
    let common = prefixes.find(|prefix| all.iter().all(|other| other.starts_with(prefix)))?;
    let before = &text[..argument_of(text).1];
    let space = if all.len() == 1 { " " } else { "" };
    Some(format!("{before}{common}{space}"))
}

/// The word with the smallest edit distance, if that is small enough.
fn nearest(word: &str, keys: &Keymap) -> Option<String> {
    let names = WORDS.iter().map(|(word, _)| (*word).to_owned());
    let names = names.chain(actions(keys).into_iter().map(|(name, _)| name));
    let names = names.chain(NodeWord::ALL.iter().map(|(word, _)| (*word).to_owned()));
    let names = names.chain(Page::ALL.iter().map(|page| page.title().to_lowercase()));
    let near = names.map(|name| (distance(word, &name), name)).min()?;
    // Half of a short word is another word.
    let most = if word.chars().count() < 5 { 1 } else { 2 };
    (near.0 <= most).then_some(near.1)
}

/// Levenshtein distance in characters.
fn distance(one: &str, two: &str) -> usize {
    let two: Vec<char> = two.chars().collect();
    let mut row: Vec<usize> = (0..=two.len()).collect();
    for (count, letter) in one.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = count + 1;
        for (place, other) in two.iter().enumerate() {
            let change = diagonal + usize::from(letter != *other);
            diagonal = row[place + 1];
            row[place + 1] = change.min(diagonal + 1).min(row[place] + 1);
        }
    }
    row[two.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keymap::{AppAction, OperateAction};

    #[track_caller]
    fn check(text: &str, expected: Result<LineCommand, &str>) {
        let found = parse(text, &Keymap::default());
        match (found, expected) {
            (Err(found), Err(words)) => assert!(found.contains(words), "{found}"),
            (found, expected) => assert_eq!(found, expected.map_err(str::to_owned)),
        }
    }

    #[test]
    fn commands_are_parsed_with_their_arguments() {
        check("quit", Ok(LineCommand::Act(Action::App(AppAction::Quit))));
        check(" q ", Ok(LineCommand::Act(Action::App(AppAction::Quit))));
        check("page sync", Ok(LineCommand::Act(Action::Navigate(NavigateAction::Show(Page::Sync)))));
        check("page 3", Ok(LineCommand::Act(Action::Navigate(NavigateAction::Show(Page::Sync)))));
        check("events", Ok(LineCommand::Act(Action::Navigate(NavigateAction::Show(Page::Events)))));
        check("page 10", Err("page: one of cluster"));
        check("page 0", Err("page: one of cluster"));
        check("restart", Ok(LineCommand::Act(Action::Operate(OperateAction::Restart))));
        check("filter  pi1 hot", Ok(LineCommand::Filter("pi1 hot".into())));
        check("sort temp down", Ok(LineCommand::Sort(Some(("temp".into(), true)))));
        check("sort", Ok(LineCommand::Sort(None)));
        check("export csv", Ok(LineCommand::Export(Format::Csv, None)));
        check("export txt a b.txt", Ok(LineCommand::Export(Format::Text, Some("a b.txt".into()))));
        check("export pdf", Err("csv, json, text or svg"));
        check("record stop", Ok(LineCommand::StopRecording));
        check("theme light", Ok(LineCommand::Theme(ThemeName::Light)));
        check("theme pink", Err("high-contrast"));
        check("restrat", Err("\"restart\"?"));
        check("foo", Err("Tab shows all"));
        check("cluter", Err("\"cluster\"?"));
        check("uncordn", Err("\"uncordon\"?"));
        check("quit now", Err("takes no argument"));
        check("exclude pi3", Ok(LineCommand::OnNode(NodeWord::Out(Removal::Exclude), "pi3".into())));
        check("node pi3", Ok(LineCommand::OnNode(NodeWord::Show, "pi3".into())));
        check("restart pi2", Ok(LineCommand::OnNode(NodeWord::Restart, "pi2".into())));
        check("exclude", Ok(LineCommand::Act(Action::Operate(OperateAction::Exclude))));
        check("uncordon", Err("name the node"));
        check("日本語", Err("Tab shows all"));
    }

    #[test]
    fn tab_completes_the_common_prefix() {
        let (desk, none) = (Preferences::default(), Names::default());
        assert_eq!(completed("the", &desk, &none).as_deref(), Some("theme "));
        assert_eq!(completed("theme h", &desk, &none).as_deref(), Some("theme high-contrast "));
        assert_eq!(completed("page-", &desk, &none), Some("page-".to_owned()), "page-next and page-previous");
        let names = Names {
            nodes: vec!["pi1".into(), "pi2".into()],
            models: vec!["llama".into()],
            columns: vec!["temp".into(), "CPU used".into()],
        };
        assert_eq!(completed("load l", &desk, &names).as_deref(), Some("load llama "));
        assert_eq!(completed("sort CPU u", &desk, &names).as_deref(), Some("sort CPU used "));
        assert_eq!(completed("exclude p", &desk, &names).as_deref(), Some("exclude pi"));
        assert_eq!(completed("xyz", &desk, &none), None);
        assert_eq!(completions("theme ", &desk, &none).len(), ThemeName::ALL.len());
        assert!(completions("", &desk, &none).contains(&"restart".to_owned()));
    }

    #[test]
    fn tab_steps_through_the_candidates_and_back() {
        let names = Names { nodes: vec!["pi1".into(), "pi2".into()], ..Names::default() };
        let desk = Preferences::default();
        let mut steps = cycle("node pi", &desk, &names).expect("two candidates");
        assert_eq!(steps.text(), "node pi1");
        steps.step(false);
        assert_eq!(steps.text(), "node pi2");
        steps.step(false);
        steps.step(true);
        assert_eq!((steps.text().as_str(), steps.at), ("node pi2", 1));
        assert_eq!(cycle("node pi1", &desk, &names), None, "one candidate needs no steps");
    }

    #[test]
    fn every_key_action_can_be_typed_as_a_command() {
        let keys = Keymap::default();
        for binding in keys.all().filter(|binding| binding.is_command()) {
            let name = binding.action.name();
            if WORDS.iter().any(|(word, _)| *word == name) {
                continue;
            }
            assert_eq!(parse(&name, &keys), Ok(LineCommand::Act(binding.action)), "{name}");
        }
    }
}

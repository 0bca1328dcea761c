//! Texts of the dialogs: the exact effect of an operation, the nodes affected, and the remaining capacity.
use common::{ids::MemberIndex, units::Bytes};
use planner::replan::Outlook;
use topology::{Member, Topology, rolling::Phase};

use crate::{
    catalogue::CatalogueFile,
    operator::command::Removal,
    operator::desired::DesiredTopology,
    state::{
        State,
        clean::clean_line,
        operation::{Dialog, Operation, Question, is_dangerous},
        plan::preview,
        what_if::outlook,
    },
};

/// A dialog as text.
pub(super) struct Words {
    pub(super) title: String,
    pub(super) paragraphs: Vec<Paragraph>,
    /// Keys and the answers that they give.
    pub(super) keys: Vec<(&'static str, &'static str)>,
}

pub(super) struct Paragraph {
    pub(super) text: String,
    /// Whether the dialog is highlighted as dangerous.
    pub(super) is_grave: bool,
}

fn plain(text: String) -> Paragraph {
    Paragraph { text, is_grave: false }
}

const SAVE_OR_NOT: [(&str, &str); 2] = [("Enter", "save"), ("Esc", "leave it")];
const YES_OR_NO: [(&str, &str); 2] = [("Enter", "yes"), ("Esc", "no")];

/// Renders the dialog as text.
pub(super) fn words(state: &State, dialog: &Dialog) -> Words {
    let (title, paragraphs) = match &dialog.question {
        Question::Restart { which } => ("Rolling restart".to_owned(), restart(state, which)),
        Question::Rolling => return rolling(state),
        Question::Out { node, how } => out(state, *node, *how),
        Question::In { node } => take_in(state, *node),
        Question::Assign { wanted, members } => ("Assign".to_owned(), assign(state, wanted, members)),
        Question::AbortAssignment => abort(state),
        Question::Pull { name, file, nodes } => pull(state, name, file, nodes),
        Question::DeleteModel { model, nodes } => {
            let text = format!("{} delete the files of {model}. Nothing that runs uses them.", names(state, nodes));
            ("Delete a model".to_owned(), vec![plain(text)])
        }
        Question::Unload { topology, .. } => {
            let text = format!(
                "{} of {} ends on {}; their memory is free for another model. Refused while a request runs.",
                topology.layout,
                topology.model,
                member_names(topology)
            );
            ("Unload the model".to_owned(), vec![plain(text)])
        }
        Question::SystemPrompt => {
            let text =
                "Sent before the conversation with each message; empty: none. It applies from the next answer on.";
            return Words {
                title: "System prompt".to_owned(),
                paragraphs: vec![plain(text.to_owned())],
                keys: SAVE_OR_NOT.to_vec(),
            };
        }
        Question::RenameConversation { .. } => {
            let text = "The title in the list; empty: the beginning of its first message.";
            return Words {
                title: "Rename the conversation".to_owned(),
                paragraphs: vec![plain(text.to_owned())],
                keys: SAVE_OR_NOT.to_vec(),
            };
        }
        Question::DeleteConversation { title, .. } => {
            let text = format!("\"{title}\" and its file are deleted. That cannot be undone.");
            ("Delete the conversation".to_owned(), vec![Paragraph { text, is_grave: true }])
        }
        Question::CancelRequest { node, who, .. } => {
            let text = format!(
                "{} ends {who}. Its client keeps the text so far and is told that it was cancelled.",
                name(state, *node)
            );
            ("Cancel a request".to_owned(), vec![plain(text)])
        }
    };
    let mut keys = YES_OR_NO.to_vec();
    if dialog.reason.is_some() && dialog.name.is_some() {
        keys.push(("Tab", "next line"));
    }
    Words { title, paragraphs, keys }
}

fn name(state: &State, node: usize) -> &str {
    state.cluster.nodes.get(node).map_or("?", |node| node.name())
}

fn names(state: &State, which: &[usize]) -> String {
    which.iter().map(|node| name(state, *node)).collect::<Vec<_>>().join(", ")
}

fn member_names(topology: &Topology) -> String {
    topology.members.iter().map(|member| member.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn restart(state: &State, which: &[usize]) -> Vec<Paragraph> {
    let replicas = replaced(state, which).into_iter().map(|topology| topology.layout.replicas).min();
    let meanwhile = match replicas {
        None => "No model is running on them.",
        Some(1) => {
            "Answers of the HTTP API pause while a node is away and then continue with the same text; prompts of this screen wait."
        }
        _ => "The other replicas serve in the meantime.",
    };
    let each = "drains for up to 1 s, restarts, loads its shard and serves again before the next one begins";
    vec![
        plain(format!("One after the other, each of {} {each}.", names(state, which))),
        plain(meanwhile.to_owned()),
        plain("It continues without this screen and pauses at the first problem. R pauses, resumes or stops it, from any console.".to_owned()),
    ]
}

fn rolling(state: &State) -> Words {
    let title = "Rolling restart".to_owned();
    let Some(rolling) = &state.cluster.rolling else {
        return Words { title, paragraphs: Vec::new(), keys: YES_OR_NO.to_vec() };
    };
    let count = format!("{} of {} nodes are done; started by {}.", rolling.done, rolling.targets.len(), rolling.by);
    let target = rolling.target().map_or("none", |(name, _)| name.as_str());
    let (now, keys) = match &rolling.phase {
        Phase::Paused(reason) => {
            let again = format!("Paused: {reason}. Resume continues with {target}; stop leaves the rest as they are.");
            (again, vec![("r", "resume"), ("a", "stop"), ("Esc", "leave it paused")])
        }
        Phase::Runs => {
            let goes = format!("{target} is restarting. Pause and stop let it finish first.");
            (goes, vec![("p", "pause"), ("a", "stop"), ("Esc", "let it continue")])
        }
        Phase::Aborted | Phase::Done => ("It is over.".to_owned(), vec![("Esc", "close")]),
    };
    Words { title, paragraphs: vec![plain(count), plain(now)], keys }
}

fn out(state: &State, node: usize, how: Removal) -> (String, Vec<Paragraph>) {
    let who = name(state, node);
    let group = state.cluster.nodes.get(node).and_then(|node| state.cluster.topology_of(node));
    let running = match requests(state, group.into_iter()) {
        0 => "No request is running.".to_owned(),
        1 => {
            "1 request is running and may finish".to_owned()
                + if how == Removal::Exclude { " within 20 s." } else { "." }
        }
        more => {
            format!(
                "{more} requests are running and may finish{}",
                if how == Removal::Exclude { " within 20 s." } else { "." }
            )
        }
    };
    let outlook = outlook(state, node);
    let rest = outlook.as_ref().and_then(|outlook| outlook.topology.as_ref().ok()).map(member_names);
    let (title, first) = match how {
        Removal::Cordon => (
            format!("Cordon {who}"),
            "It and its replica take no new requests. It keeps its shard; c uncordons it.".to_owned(),
        ),
        Removal::Drain => (
            format!("Drain {who}"),
            "It and its replica take no new requests; running ones get up to 20 s to finish.".to_owned(),
        ),
        Removal::Exclude => {
            let first = match rest {
                Some(rest) => format!("The model is assigned to {rest} without it. {who}"),
                None => "It".to_owned(),
            };
            (format!("Exclude {who}"), first + " stays out, across restarts too, until you include it again.")
        }
    };
    let mut paragraphs = vec![plain(first), plain(running), left(who, outlook.as_ref(), how)];
    if is_dangerous(state, node, how) {
        let text = format!("Nothing that serves would be left. To do it all the same, type its name: {who}");
        paragraphs.push(Paragraph { text, is_grave: true });
    }
    (title, paragraphs)
}

/// The remaining capacity: the preview that `console node check` and the exclusion itself show.
fn left(who: &str, outlook: Option<&Outlook>, how: Removal) -> Paragraph {
    let Some(outlook) = outlook else {
        return plain(format!("Safe: {who} holds no part of the running model."));
    };
    let rest = |needed: Bytes| format!("{needed} a node");
    let others = match outlook.replicas {
        1 => "Safe: 1 other replica continues without a pause".to_owned(),
        count => format!("Safe: {count} other replicas continue without a pause"),
    };
    let text = match (outlook.replicas, outlook.layout(), how) {
        (1.., Some(layout), Removal::Exclude) => {
            format!("{others}; then {layout} serves ({}).", rest(outlook.needed))
        }
        (1.., ..) => format!("{others}."),
        (0, _, Removal::Cordon | Removal::Drain) => "Not safe: no other replica takes requests.".to_owned(),
        (0, Some(layout), Removal::Exclude) if outlook.holds_both => {
            format!("Safe: {layout} loads on the rest while answers continue ({}).", rest(outlook.needed))
        }
        (0, Some(layout), Removal::Exclude) => format!(
            "Safe, with a pause: {layout} loads on the rest ({}); memory does not hold both.",
            rest(outlook.needed)
        ),
        (0, None, Removal::Exclude) => {
            let reason = outlook.topology.as_ref().err().map_or("nothing fits on the rest", String::as_str);
            format!("Not safe: {}.", clean_line(reason))
        }
    };
    plain(text)
}

fn pull(state: &State, name: &str, file: &CatalogueFile, nodes: &[usize]) -> (String, Vec<Paragraph>) {
    let (size, source) = (file.size(), file.source);
    let who = match nodes {
        [only] => format!("{} downloads {size}.", crate::view::question::name(state, *only)),
        _ => format!("One of {} downloads {size}, the others copy it from there.", names(state, nodes)),
    };
    let terms =
        "Running requests are not affected. Read the licence on the model's page first. X cancels the download."
            .to_owned();
    (
        format!("Download {name}, {}", file.quantisation),
        vec![plain(who), plain(format!("Source: {source}")), plain(terms)],
    )
}

fn abort(state: &State) -> (String, Vec<Paragraph>) {
    if let Some(Operation::Change { node, .. }) = &state.operations.running {
        let (who, what) =
            (name(state, *node), "The wait ends, and what is being loaded is dropped. The running model continues");
        let text = format!("{what}. {who} stays as it is marked now; c changes that.");
        return (format!("Leave {who} as it is"), vec![plain(text)]);
    }
    let text = "The nodes drop what they are loading. What ran before continues; a waiting prompt fails.";
    ("Abort the assignment".to_owned(), vec![plain(text.to_owned())])
}

fn take_in(state: &State, node: usize) -> (String, Vec<Paragraph>) {
    let who = name(state, node);
    let known = state.cluster.nodes.get(node);
    let entry = known.and_then(|node| state.cluster.exclusion(node));
    let because = entry.map_or_else(String::new, |entry| {
        let reason = entry.reason.as_deref().unwrap_or_default();
        format!("{who} is {}: {reason} (by {}).", entry.word(), entry.by)
    });
    let then = if known.is_some_and(|node| state.cluster.is_cordoned(node)) {
        "It still holds its shard: its replica takes requests again at once.".to_owned()
    } else {
        match state.cluster.groups().len() {
            0 => "No model is running; the next assignment can use it.".to_owned(),
            2.. if !known.is_some_and(|node| state.cluster.is_wanted(node)) => {
                "The running models stay where they are; the next assignment can use it.".to_owned()
            }
            _ => "Running requests get up to 20 s; then the model is assigned again, with it.".to_owned(),
        }
    };
    (format!("Include {who}"), vec![plain(because), plain(then)])
}

/// The running topologies that end if these nodes get another one.
fn replaced<'s>(state: &'s State, members: &[usize]) -> Vec<&'s Topology> {
    let mut groups = state.cluster.groups();
    groups.retain(|topology| {
        let mut nodes = members.iter().filter_map(|node| state.cluster.nodes.get(*node));
        nodes.any(|node| topology.members.iter().any(|member| node.is(member)))
    });
    groups
}

/// The requests that run on these topologies.
fn requests<'s>(state: &'s State, topologies: impl Iterator<Item = &'s Topology>) -> u32 {
    topologies
        .flat_map(|topology| &topology.members)
        .filter_map(|member| state.cluster.nodes.iter().find(|node| node.is(member))?.report.as_ref())
        .map(|report| report.requests)
        .sum()
}

fn assign(state: &State, wanted: &DesiredTopology, members: &[usize]) -> Vec<Paragraph> {
    let layout = wanted.layout;
    let replaced = replaced(state, members);
    let mut now = match &replaced[..] {
        [] if state.cluster.topology().is_none() => format!("{layout} of {}; nothing is running now.", wanted.model),
        [] => format!("{layout} of {}; these nodes serve nothing now, and the others continue.", wanted.model),
        [only] if only.layout == layout && only.model == wanted.model => {
            format!("{} already runs as {layout}; where that is still so, nothing changes.", wanted.model)
        }
        several => {
            let list: Vec<String> = several.iter().map(|one| format!("{} of {}", one.layout, one.model)).collect();
            let verb = if list.len() > 1 { "are" } else { "is" };
            format!("{} {verb} replaced by {layout} of {}.", list.join(" and "), wanted.model)
        }
    };
    if !replaced.is_empty() {
        let before: Vec<&Member> = replaced.iter().flat_map(|topology| &topology.members).collect();
        let new = members.iter().copied().filter(|place| {
            let node = &state.cluster.nodes[*place];
            !before.iter().any(|member| node.is(member))
        });
        let new: Vec<usize> = new.collect();
        let gone = before.iter().map(|member| member.name.as_str());
        let gone = gone.filter(|name| !members.iter().any(|node| state.cluster.nodes[*node].name() == *name));
        let gone: Vec<&str> = gone.collect();
        let part = |word: &str, list: String| if list.is_empty() { String::new() } else { format!(" {word} {list}.") };
        now += &(part("New:", names(state, &new)) + &part("No longer:", gone.join(", ")));
    }
    let head =
        layout.heads().filter_map(|MemberIndex(head)| members.get(usize::from(head)).copied()).collect::<Vec<_>>();
    let is_other_model = replaced.iter().any(|topology| topology.model != wanted.model);
    let cut = match requests(state, replaced.iter().copied()) {
        0 => "No request is running.".to_owned(),
        count if is_other_model => format!("{count} running requests end, because another model would answer."),
        count => format!("{count} running requests: those of the HTTP API continue, others fail."),
    };
    let mut paragraphs = vec![plain(now)];
    paragraphs.extend(preview(state, wanted).into_iter().map(plain));
    paragraphs.extend([
        plain(format!(
            "{} load their parts from their own files, then all switch at once; head {}.",
            names(state, members),
            names(state, &head)
        )),
        plain(format!("{cut} A aborts it while they load.")),
    ]);
    paragraphs
}

//! Tests every key of the help page with a case that checks its effect; a key without a case fails the walk over the
//! table.
use telemetry::{NodeState, Severity};
use topology::Exclusions;

use crate::{
    fixtures::{NODES, Story, address, finished, name},
    keymap::{
        Action, AppAction, BINDINGS, Binding, ChatAction, EditAction, GenerateAction, Key, KeyCode, NavigateAction,
        OperateAction, Place, ScrollAction, TableAction,
    },
    operator::{command::Removal, model_order::ModelOrder},
    state::{
        Focus, Page, Panel, State, TextScroll,
        command::Format,
        models::ModelChoice,
        operation::{Dialog, Question},
        tables,
    },
    update::effect::{Effect, FileEffect},
    update::event::{Event, GenerateEvent},
};

/// A situation in which the key is pressed, and the condition that must hold afterwards.
type Case = (Story, fn(&Story) -> bool);

/// A finished generation with the focus outside the prompt box, on this page, with the third node selected.
fn on(page: Page) -> Story {
    let mut story = Story::finished();
    story.key(KeyCode::Esc);
    story.state.screen.focus = Focus::first_of(page);
    story.state.screen.selected = 2;
    story.effects.clear();
    story
}

/// Text in the prompt box, the cursor inside its second line; the output above is longer than its panel.
fn in_prompt() -> Story {
    let mut story = Story::finished();
    story.on(Event::Paste("one two\nthree four".to_owned()));
    for _ in 0..5 {
        story.key(KeyCode::Left);
    }
    story.effects.clear();
    story
}

/// A filter being typed on the Cluster page.
fn in_filter() -> Story {
    let mut story = on(Page::Cluster);
    for letter in "/pi x".chars() {
        story.key(KeyCode::Char(letter));
    }
    story
}

fn selected(state: &State) -> usize {
    state.screen.selected
}

fn filter(state: &State) -> &str {
    tables::arrangement(state, Page::Cluster).filter.typed()
}

/// Cases of keys that navigate and quit.
fn of_pages(binding: &Binding, key: Key) -> Option<Case> {
    let anywhere = |page| if key.types() { on(page) } else { in_prompt() };
    Some(match (binding.place, binding.action) {
        (_, Action::App(AppAction::Interrupt) | Action::App(AppAction::Escape)) => {
            let mut story = Story::generating();
            story.effects.clear();
            (story, |after| after.effects == [Effect::Cancel])
        }
        (_, Action::Navigate(NavigateAction::FocusNext) | Action::Navigate(NavigateAction::FocusPrevious)) => {
            (Story::ready(), |after| after.state.screen.focus == Focus { page: Page::Generate, panel: Panel::Text })
        }
        (_, Action::App(AppAction::Quit)) => (on(Page::Cluster), |after| after.effects == [Effect::Quit(0)]),
        (Place::Prompt, Action::App(AppAction::Help)) => (in_prompt(), |after| after.state.screen.help == Some(0)),
        (_, Action::App(AppAction::Help)) => (on(Page::Events), |after| after.state.screen.help == Some(0)),
        (_, Action::Navigate(NavigateAction::FocusPrompt)) => {
            (on(Page::Node), |after| after.state.screen.focus == Focus::first_of(Page::Generate))
        }
        (_, Action::Navigate(NavigateAction::Show(Page::Cluster))) => {
            (anywhere(Page::Node), |after| after.state.screen.focus.page == Page::Cluster)
        }
        (_, Action::Navigate(NavigateAction::Show(Page::Topology))) => {
            (anywhere(Page::Node), |after| after.state.screen.focus.page == Page::Topology)
        }
        (_, Action::Navigate(NavigateAction::Show(Page::Sync))) => {
            (anywhere(Page::Node), |after| after.state.screen.focus.page == Page::Sync)
        }
        (_, Action::Navigate(NavigateAction::Show(Page::Generate))) => {
            (on(Page::Node), |after| after.state.screen.focus.is_typing())
        }
        (_, Action::Navigate(NavigateAction::Show(Page::Requests))) => {
            (anywhere(Page::Node), |after| after.state.screen.focus.page == Page::Requests)
        }
        (_, Action::Navigate(NavigateAction::Show(Page::Events))) => {
            (anywhere(Page::Node), |after| after.state.screen.focus.page == Page::Events)
        }
        (_, Action::Navigate(NavigateAction::Show(Page::Node))) => {
            (anywhere(Page::Sync), |after| after.state.screen.focus.page == Page::Node)
        }
        (_, Action::Navigate(NavigateAction::Show(Page::Models))) => {
            (anywhere(Page::Sync), |after| after.state.screen.focus.page == Page::Models)
        }
        (_, Action::Navigate(NavigateAction::Show(Page::Chat))) => {
            (anywhere(Page::Sync), |after| after.state.screen.focus.page == Page::Chat)
        }
        (_, Action::Navigate(NavigateAction::PageNext)) => {
            (on(Page::Node), |after| after.state.screen.focus.page == Page::Models)
        }
        (_, Action::Navigate(NavigateAction::PagePrevious)) => {
            (on(Page::Requests), |after| after.state.screen.focus == Focus { page: Page::Generate, panel: Panel::Text })
        }
        (_, Action::Navigate(NavigateAction::Open)) => {
            (on(Page::Cluster), |after| after.state.screen.focus.page == Page::Node && after.state.screen.selected == 2)
        }
        (_, Action::Navigate(NavigateAction::RankPrevious)) => (on(Page::Node), |after| selected(&after.state) == 1),
        (_, Action::Navigate(NavigateAction::RankNext)) => (on(Page::Node), |after| selected(&after.state) == 3),
        (Place::Panels | Place::Filter, Action::Scroll(ScrollAction::Up)) => {
            let story = if binding.place == Place::Filter { in_unmatched_filter() } else { on(Page::Cluster) };
            (story, |after| selected(&after.state) == 1)
        }
        (Place::Panels | Place::Filter, Action::Scroll(ScrollAction::Down)) => {
            let story = if binding.place == Place::Filter { in_unmatched_filter() } else { on(Page::Cluster) };
            (story, |after| selected(&after.state) == 3)
        }
        (Place::Panels, Action::Scroll(ScrollAction::PageUp) | Action::Scroll(ScrollAction::Top)) => {
            (on(Page::Cluster), |after| selected(&after.state) == 0)
        }
        (Place::Panels, Action::Scroll(ScrollAction::PageDown) | Action::Scroll(ScrollAction::Bottom)) => {
            (on(Page::Cluster), |after| selected(&after.state) == NODES - 1)
        }
        _ => return None,
    })
}

/// A filter being typed that still matches every row.
fn in_unmatched_filter() -> Story {
    let mut story = on(Page::Cluster);
    story.key(KeyCode::Char('/'));
    story
}

fn question(story: &Story) -> Option<&Question> {
    story.state.operations.dialog.as_ref().map(|dialog: &Dialog| &dialog.question)
}

fn is_out(story: &Story, wanted: Removal) -> bool {
    matches!(question(story), Some(Question::Out { node: 2, how }) if *how == wanted)
}

/// The Sync page after half a minute of all-reduces, showing the state ten seconds ago.
fn in_the_past() -> Story {
    let mut story = Story::generating();
    for second in 2..30 {
        story.at(1000 * second).all_report(NodeState::Serving, true);
    }
    story.state.screen.focus = Focus::first_of(Page::Sync);
    story.key(KeyCode::Char('{'));
    story
}

/// The Generate page with the focus on the text, where letters are not typed.
fn beside_prompt() -> Story {
    let mut story = on(Page::Generate);
    story.key(KeyCode::Tab);
    story
}

/// Cases of the Sync and Generate pages.
fn of_sync_and_generate(binding: &Binding) -> Option<Case> {
    Some(match binding.action {
        Action::Navigate(NavigateAction::SyncMetric) => {
            (on(Page::Sync), |after| after.state.tables.sync_metric != on(Page::Sync).state.tables.sync_metric)
        }
        Action::Navigate(NavigateAction::Older)
        | Action::Navigate(NavigateAction::MuchOlder)
        | Action::Navigate(NavigateAction::Newer)
        | Action::Navigate(NavigateAction::MuchNewer)
        | Action::Navigate(NavigateAction::Live) => {
            (in_the_past(), |after| after.state.cluster.sync != in_the_past().state.cluster.sync)
        }
        Action::Generate(GenerateAction::SamplingForm) if binding.place == Place::On(Page::Chat) => {
            (in_chat(Panel::Text), |after| after.state.screen.form.is_some())
        }
        Action::Chat(action) => return Some(of_chat(binding, action)),
        Action::Generate(GenerateAction::SamplingForm) if binding.place == Place::Prompt => {
            (in_prompt(), |after| after.state != in_prompt().state)
        }
        Action::Generate(GenerateAction::Pin) if binding.place == Place::Prompt => {
            (in_prompt(), |after| after.state != in_prompt().state)
        }
        Action::Generate(GenerateAction::SamplingForm) | Action::Generate(GenerateAction::Pin) => {
            (beside_prompt(), |after| after.state != beside_prompt().state)
        }
        _ => return None,
    })
}

/// A conversation with an answered message, with the focus on this panel.
fn in_chat(panel: Panel) -> Story {
    let mut story = Story::ready();
    story.state.screen.editor.replace("");
    story.state.screen.focus = Focus::first_of(Page::Chat);
    story.on(Event::Paste("one".to_owned())).key(KeyCode::Enter);
    story.generate(GenerateEvent::Started { prompt_token_ids: vec![1] }).token("1");
    story.generate(GenerateEvent::Finished(Box::new(finished())));
    story.state.screen.focus.panel = panel;
    story
}

/// Cases of keys of the page Chat.
fn of_chat(binding: &Binding, action: ChatAction) -> Case {
    let story = in_chat(if binding.place == Place::Message { Panel::Prompt } else { Panel::Text });
    let holds: fn(&Story) -> bool = match action {
        ChatAction::ChatNew => |after| after.state.chat.current.is_none(),
        ChatAction::ChatAgain => |after| after.state.chat.awaits(),
        ChatAction::ChatEdit => |after| after.state.chat.edits && after.state.screen.editor.text() == "one",
        ChatAction::ChatThoughts => |after| after.state.chat.shows_thoughts,
        ChatAction::ChatCopy => |after| after.effects.contains(&Effect::Copy("1".to_owned())),
        ChatAction::ChatExport => |after| {
            let format = Format::Markdown;
            after.effects.contains(&Effect::File(FileEffect::Export { format, file: None }))
        },
        ChatAction::ChatSystem => |after| question(after) == Some(&Question::SystemPrompt),
        ChatAction::ChatRename => |after| matches!(question(after), Some(Question::RenameConversation { .. })),
        ChatAction::ChatDelete => |after| matches!(question(after), Some(Question::DeleteConversation { .. })),
    };
    (story, holds)
}

/// Cases of keys that act on the cluster.
fn of_actions(binding: &Binding) -> Option<Case> {
    Some(match binding.action {
        Action::Operate(OperateAction::AssignAgain) => {
            (on(Page::Cluster), |after| matches!(question(after), Some(Question::Assign { .. })))
        }
        Action::Operate(OperateAction::LoadModel) => {
            (on(Page::Cluster), |after| matches!(after.effects.as_slice(), [Effect::Models(ModelOrder::List(_))]))
        }
        Action::Operate(OperateAction::Restart) => {
            let mut story = on(Page::Cluster);
            story.all_report(NodeState::Ready, false);
            (story, |after| matches!(question(after), Some(Question::Restart { .. })))
        }
        Action::Operate(OperateAction::Exclude) => (on(Page::Cluster), |after| is_out(after, Removal::Exclude)),
        Action::Operate(OperateAction::Cordon) => (on(Page::Cluster), |after| is_out(after, Removal::Cordon)),
        Action::Operate(OperateAction::Drain) => (on(Page::Cluster), |after| is_out(after, Removal::Drain)),
        Action::Operate(OperateAction::AbortAssignment) => {
            let mut story = Story::begin();
            story.at(10).all_connected().all_loading().key(KeyCode::Esc);
            (story, |after| question(after) == Some(&Question::AbortAssignment))
        }
        Action::Operate(OperateAction::CancelRequest) => {
            let mut story = Story::busy();
            story.state.screen.focus = Focus::first_of(Page::Requests);
            (story, |after| matches!(question(after), Some(Question::CancelRequest { node: 0, number: 4, .. })))
        }
        Action::Operate(OperateAction::PullModel) => {
            (on(Page::Models), |after| matches!(question(after), Some(Question::Pull { .. })))
        }
        Action::Operate(OperateAction::CancelPull) => {
            let mut story = on(Page::Models);
            story.key(KeyCode::Char('p')).key(KeyCode::Enter);
            (story, |after| after.effects == [Effect::Models(ModelOrder::CancelPull)])
        }
        Action::Operate(OperateAction::UnloadModel) => {
            (on(Page::Models), |after| matches!(question(after), Some(Question::Unload { .. })))
        }
        Action::Operate(OperateAction::DeleteModel) => {
            let mut story = on(Page::Models);
            let choice = ModelChoice { model: "old.gguf".into(), bytes: 5, nodes: vec![1] };
            story.state.models.list.choices.push(choice);
            (story, |after| matches!(question(after), Some(Question::DeleteModel { .. })))
        }
        Action::Operate(OperateAction::Plan) => {
            (on(Page::Topology), |after| matches!(after.effects.as_slice(), [Effect::Plan(_)]))
        }
        _ => return None,
    })
}

/// Cases of keys that act on tables.
fn of_tables(binding: &Binding) -> Option<Case> {
    Some(match binding.action {
        Action::Table(TableAction::Filter) => {
            (on(Page::Events), |after| after.state.screen.focus == Focus { page: Page::Events, panel: Panel::Filter })
        }
        Action::Table(TableAction::KeepFilter) => {
            (in_filter(), |after| after.state.screen.focus.panel == Panel::Nodes && filter(&after.state) == "pi x")
        }
        Action::Table(TableAction::SortNext) => {
            (on(Page::Cluster), |after| tables::arrangement(&after.state, Page::Cluster).sort == Some((0, false)))
        }
        Action::Table(TableAction::SortPrevious) => (on(Page::Cluster), |after| {
            let columns = tables::table(&after.state, Page::Cluster).map_or(0, |table| table.columns.len());
            tables::arrangement(&after.state, Page::Cluster).sort.map(|(column, _)| column) == Some(columns - 1)
        }),
        Action::Table(TableAction::SortReverse) => {
            let mut story = on(Page::Cluster);
            story.key(KeyCode::Char('s'));
            (story, |after| {
                let table = tables::table(&after.state, Page::Cluster).expect("the page has a table");
                tables::shown(&after.state, Page::Cluster, &table).0[0].key == address(NODES - 1)
            })
        }
        Action::Table(TableAction::Severity) => {
            (on(Page::Events), |after| after.state.tables.severity_min == Severity::Warning)
        }
        _ => return None,
    })
}

/// Cases of keys that edit text.
fn of_typing(binding: &Binding) -> Option<Case> {
    if binding.place == Place::Filter {
        return Some(match binding.action {
            Action::Edit(EditAction::EraseBefore) => (in_filter(), |after| filter(&after.state) == "pi "),
            Action::Edit(EditAction::EraseWord) => (in_filter(), |after| filter(&after.state) == "pi "),
            Action::Edit(EditAction::EraseToStart) => (in_filter(), |after| filter(&after.state).is_empty()),
            _ => return None,
        });
    }
    Some(match binding.action {
        Action::Generate(GenerateAction::Submit) => {
            (in_prompt(), |after| matches!(after.effects.as_slice(), [Effect::Generate { head: 0, .. }]))
        }
        Action::Edit(EditAction::NewLine) => {
            (in_prompt(), |after| after.state.screen.editor.text() == "one two\nthree\n four")
        }
        Action::Edit(EditAction::CursorLeft) => (in_prompt(), |after| at(after) == "one two\nthre"),
        Action::Edit(EditAction::CursorRight) => (in_prompt(), |after| at(after) == "one two\nthree "),
        Action::Edit(EditAction::WordLeft) => (in_prompt(), |after| at(after) == "one two\n"),
        Action::Edit(EditAction::WordRight) => (in_prompt(), |after| at(after) == "one two\nthree four"),
        Action::Edit(EditAction::LineStart) => (in_prompt(), |after| at(after) == "one two\n"),
        Action::Edit(EditAction::LineEnd) => (in_prompt(), |after| at(after) == "one two\nthree four"),
        Action::Edit(EditAction::LineUp) => (in_prompt(), |after| at(after) == "one t"),
        Action::Edit(EditAction::LineDown) => {
            let mut story = in_prompt();
            story.key(KeyCode::Up);
            (story, |after| at(after) == "one two\nthree")
        }
        Action::Edit(EditAction::EraseBefore) => {
            (in_prompt(), |after| after.state.screen.editor.text() == "one two\nthre four")
        }
        Action::Edit(EditAction::EraseAfter) => {
            (in_prompt(), |after| after.state.screen.editor.text() == "one two\nthreefour")
        }
        Action::Edit(EditAction::EraseWord) => {
            (in_prompt(), |after| after.state.screen.editor.text() == "one two\n four")
        }
        Action::Edit(EditAction::EraseToStart) => {
            (in_prompt(), |after| after.state.screen.editor.text() == "one two\n four")
        }
        Action::Edit(EditAction::EraseToEnd) => {
            (in_prompt(), |after| after.state.screen.editor.text() == "one two\nthree")
        }
        Action::Scroll(ScrollAction::PageUp) => {
            (in_prompt(), |after| matches!(after.state.screen.scroll.text, TextScroll::At(_)))
        }
        Action::Scroll(ScrollAction::PageDown) => {
            let mut story = in_prompt();
            story.key(KeyCode::PageUp);
            (story, |after| after.state.screen.scroll.text == TextScroll::Follow)
        }
        _ => return None,
    })
}

/// Cases of keys that control the screen itself.
fn of_app(binding: &Binding) -> Option<Case> {
    Some(match binding.action {
        Action::App(AppAction::Command) => (on(Page::Cluster), |after| after.state.preferences.is_commanding),
        Action::App(AppAction::Freeze) => (on(Page::Cluster), |after| after.state.frozen.is_some()),
        Action::App(AppAction::Mouse) => (on(Page::Cluster), |after| after.effects == [Effect::TakeMouse(false)]),
        Action::App(AppAction::Record) => {
            (on(Page::Cluster), |after| after.effects == [Effect::File(FileEffect::Record(None))])
        }
        Action::App(AppAction::ExportData) => (on(Page::Cluster), |after| {
            after.effects == [Effect::File(FileEffect::Export { format: Format::Csv, file: None })]
        }),
        Action::App(AppAction::ExportScreen) => (on(Page::Cluster), |after| {
            after.effects == [Effect::File(FileEffect::Export { format: Format::Svg, file: None })]
        }),
        _ => return None,
    })
}

/// The text before the cursor.
fn at(story: &Story) -> &str {
    story.state.screen.editor.before_cursor()
}

#[test]
fn every_key_of_the_help_page_has_an_effect() {
    // The keys of a replay and of the tour have tests next to their code.
    for binding in BINDINGS.iter().filter(|binding| !matches!(binding.place, Place::Replay | Place::Tour)) {
        for key in binding.keys.iter() {
            let case = of_pages(binding, *key)
                .or_else(|| of_actions(binding))
                .or_else(|| of_tables(binding))
                .or_else(|| of_sync_and_generate(binding))
                .or_else(|| of_app(binding))
                .or_else(|| of_typing(binding));
            let Some((mut story, holds)) = case else { panic!("{key} ({}) has no case", binding.what) };
            assert!(
                binding.place.holds(story.state.screen.focus),
                "{key} ({}) is tried where it does not apply",
                binding.what
            );
            story.effects.clear();
            story.on(Event::Key(*key));
            assert!(holds(&story), "{key} ({}) does not have its effect", binding.what);
        }
    }
}

#[test]
fn escape_removes_a_filter_and_shows_all_rows() {
    let mut story = in_filter();
    story.key(KeyCode::Esc);
    assert_eq!((filter(&story.state), story.state.screen.focus.panel), ("", Panel::Nodes));
    let mut story = in_filter();
    story.key(KeyCode::Enter).key(KeyCode::Esc);
    assert_eq!(filter(&story.state), "", "the next Esc removes a filter that was kept");
}

#[test]
fn enter_on_an_event_opens_the_page_of_its_node() {
    let mut story = on(Page::Cluster);
    let mut exclusions = Exclusions::default();
    exclusions.say(&name(3), &address(3), Some("fan stuck"), "me@here");
    let report = crate::fixtures::running(0, telemetry::NodeState::Ready, false);
    story.report(3, telemetry::NodeReport { name: name(3), exclusions, ..report });
    story.key(KeyCode::Char('6')).key(KeyCode::Enter);
    assert_eq!((story.state.screen.focus.page, story.state.screen.selected), (Page::Node, 3));
}

#[test]
fn selection_survives_a_change_of_order() {
    let mut story = on(Page::Cluster);
    for letter in "sSs".chars() {
        story.key(KeyCode::Char(letter));
        assert_eq!(tables::selected(&story.state, Page::Cluster), address(2));
    }
}

//! Stored conversations of the console, answers in them, and Markdown.
#![no_main]
use bramble_fuzz::{cut::Input, folder::Folder, memory::bounded};
use common::chat::{AnswerForm, Thinking, ToolFormat};
use console::{
    client::conversations::ConversationFolder,
    conversation::{Conversation, blocks, is_id, read},
};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static FOLDER: Folder = Folder::new("conversation");
}

fn stored(bytes: &[u8]) {
    let id = serde_json::from_slice::<Conversation>(bytes).map(|one| one.id).unwrap_or_default();
    let name = if is_id(&id) { format!("{id}.json") } else { "a.json".to_owned() };
    FOLDER.with(|folder| {
        folder.fill([(name.as_str(), bytes), ("b.json", b"{}".as_slice())]);
        let room = 128 * bytes.len() + (2 << 20);
        let mut conversations = ConversationFolder::at(folder.path().to_owned());
        let found = bounded(room, || conversations.read_all()).expect("the folder can be read");
        for conversation in found.all {
            conversation.check().expect("a conversation that is read is valid");
            let _ = (conversation.title(), conversation.messages(), conversation.markdown());
            conversations.hold(&conversation);
            assert_eq!(conversations.keep(&conversation), Ok(None), "it is stored again in its file");
            let again = conversations.read_all().expect("the folder can be read").all;
            assert_eq!(again, [conversation.clone()]);
            conversations.remove(&conversation.id).expect("it can be deleted");
        }
    });
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let which = input.byte();
    if which & 1 == 0 {
        return stored(input.0);
    }
    let formats = [ToolFormat::None, ToolFormat::Hermes, ToolFormat::Harmony, ToolFormat::Mistral];
    let form = AnswerForm {
        tool_format: formats[usize::from(which >> 1) % formats.len()],
        thinking: [Thinking::None, Thinking::Marked, Thinking::Open][usize::from(which >> 4) % 3],
        ..AnswerForm::default()
    };
    let text = String::from_utf8_lossy(input.0);
    let found = bounded(64 * text.len() + (1 << 16), || read(&text, &form));
    assert!(found.text.len() + found.thought.len() <= text.len());
    let _ = blocks(&found.text);
});

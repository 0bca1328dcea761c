//! Requests to the HTTP APIs: head, and a body in the form of each API with the records of an answer to it. Parts divided
//! by zero bytes: body, the model's text, headers.
#![no_main]
use bramble_fuzz::{
    cut::{Input, pieces},
    memory::bounded,
};
use common::chat::{AnswerForm, Thinking, ToolFormat};
use daemon::gateway::fuzzing::{APIS, AnswerPiece, LoneGateway};
use libfuzzer_sys::fuzz_target;

const FORMATS: [ToolFormat; 6] = [
    ToolFormat::None,
    ToolFormat::Llama3,
    ToolFormat::Hermes,
    ToolFormat::Xml,
    ToolFormat::Harmony,
    ToolFormat::Mistral,
];

thread_local! {
    static GATEWAY: LoneGateway = LoneGateway::default();
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let (api, flags, seed) = (input.byte(), input.byte(), input.byte());
    let (body, text) = (input.part(), input.text());
    GATEWAY.with(|gateway| {
        if api % (APIS + 1) == APIS {
            let (method, target) = (text, String::from_utf8_lossy(body).into_owned());
            let headers: Vec<_> = input
                .texts()
                .iter()
                .filter_map(|line| line.split_once(':'))
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect();
            gateway.check_head(&method, &target, &headers);
            return;
        }
        let form = AnswerForm {
            tool_format: FORMATS[usize::from(flags) % FORMATS.len()],
            thinking: if flags & 64 != 0 { Thinking::Marked } else { Thinking::None },
            thought_end: Vec::new(),
            has_own_calls: flags & 128 != 0,
        };
        let mut answer: Vec<AnswerPiece<'_>> = Vec::new();
        for (id, piece) in pieces(&text, seed).into_iter().enumerate() {
            answer.push(((flags & 8 == 0).then_some(id as u32), piece, (flags & 16 != 0).then_some(-1.5)));
        }
        let context = (flags & 32 != 0).then_some(64);
        // JSON as values takes some dozen times its length; an answer of one token is a few hundred bytes.
        let room = 128 * body.len() + 2048 * text.len() + (4 << 20);
        bounded(room, || gateway.read(api, body, context, &form, &answer));
    });
});

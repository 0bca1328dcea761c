//! Entry points of the fuzz targets: bodies of every API, what its writer makes of an answer, and the checks of a
//! request's head. No socket, no other node.
use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use assignment::source::url_at;
use axum::{body::Body, extract::Request};
use common::chat::AnswerForm;
use protocol::{
    handshake::Identity,
    message::{TokenEvent, TokenLogprob},
};
use tokio_util::sync::CancellationToken;

use super::{
    Gateway, Wanted,
    answer::Said,
    anthropic,
    changes::files,
    choice::Choice,
    cluster::Cluster,
    complete::{Permission, ReceivedRequest},
    embeddings,
    error::ApiError,
    http, native, ollama, openai,
    outline::Bounds,
    pages, paths, responses,
    texts::bodies,
    writer::{Demand, Tally, Writer},
};

/// How many APIs there are: numbers from here on repeat.
pub const APIS: u8 = 14;

/// A piece of an answer: a token's id, its text and log probability.
pub type AnswerPiece<'a> = (Option<u32>, &'a str, Option<f32>);

/// A gateway that is connected to nothing.
pub struct LoneGateway {
    gateway: Gateway,
    arrival: ReceivedRequest,
}

impl std::fmt::Debug for LoneGateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoneGateway").finish_non_exhaustive()
    }
}

impl Default for LoneGateway {
    fn default() -> Self {
        let listen = SocketAddr::from(([127, 0, 0, 1], 9999));
        let seconds = Duration::from_secs(1);
        let wanted = Wanted {
            own: vec!["pi1".into()],
            keys: vec!["a-key-of-a-client".into()],
            hosts: vec!["api.example".into()],
            origins: vec!["https://chat.example".into()],
            memory: 1 << 30,
            queue_wait: seconds,
            resume_wait: seconds,
            request_max: seconds,
            silent: seconds,
            ..Wanted::default()
        };
        let settings = wanted.check(listen).expect("the settings are valid");
        let (name, build, machine) = ("pi1".to_owned(), String::new(), String::new());
        let identity = Identity { name, build, numeric: 0, machine, cores: Vec::new() };
        let cluster = Arc::new(Cluster::new(listen.to_string(), Vec::new(), identity.clone(), seconds));
        let arrival = ReceivedRequest {
            id: "1234".into(),
            at: Instant::now(),
            created: 1_800_000_000,
            seed: 7,
            permission: Permission::ChangesModels,
        };
        Self { gateway: Gateway::new(settings, identity, cluster, CancellationToken::new()), arrival }
    }
}

impl LoneGateway {
    /// Reads a body in the form of an API, and writes an answer to it. Returns the bytes of the request to the head, or
    /// of the error.
    pub fn read(
        &self,
        api: u8,
        body: &[u8],
        context: Option<usize>,
        form: &AnswerForm,
        answer: &[AnswerPiece<'_>],
    ) -> usize {
        let bounds = Bounds { context };
        let (gateway, arrival) = (&self.gateway, &self.arrival);
        let demand = match api % APIS {
            0 => openai::completion(gateway, body, arrival, bounds),
            1 => openai::chat(gateway, body, arrival, bounds),
            2 => anthropic::read(gateway, body, arrival, bounds),
            3 => responses::read(gateway, body, arrival, bounds),
            4 => ollama::chat(gateway, body, arrival, bounds),
            5 => ollama::generate(gateway, body, arrival, bounds),
            6 => return described(ollama::shown(body).map(|name| name.map_or(0, |name| name.len()))),
            7 => native::read(gateway, body, arrival, bounds),
            8 => return described(embeddings::body::read(body, bounds).map(|asked| asked.wishes.len())),
            9 => return described(anthropic::count(body, bounds).map(|request| request.byte_count())),
            10 => return described(bodies::tokenize(body, bounds).map(|asked| asked.request.byte_count())),
            11 => return described(bodies::detokenize(body, bounds).map(|request| request.byte_count())),
            12 => return described(bodies::render(body, bounds).map(|request| request.byte_count())),
            _ => {
                return described(files::read(body, arrival, bounds).map(|file| {
                    url_at(&file.name, "https://hub.example").map_or(0, |(url, name)| url.len() + name.len())
                }));
            }
        };
        match demand {
            Ok(Demand::Answer(asked, mut writer)) => {
                let mut choice = Choice::new(asked.reading.clone());
                write(&mut *writer, &mut choice, form, answer, asked.is_streamed);
                for wish in &asked.choices {
                    let generate = wish.generate(Some((&[1, 2], &[3])));
                    generate.sampling.check().expect("the gateway sends only valid parameters");
                }
                asked.bytes()
            }
            Ok(Demand::Known(name, _)) => name.map_or(0, |name| name.len()),
            Err(error) => described(Err(error)),
        }
    }

    /// Checks the head of a request: path, key, and whether a web page caused it. `headers` are names and values.
    pub fn check_head(&self, method: &str, target: &str, headers: &[(String, String)]) -> bool {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let Ok(mut request) = request.body(Body::empty()) else { return false };
        paths::straighten(request.uri_mut());
        let page = pages::page(&self.gateway.settings.browsers, &request);
        let is_json = pages::json(request.uri().path(), request.headers()).is_ok();
        if let Ok(Some(origin)) = page
            && pages::is_preflight(&request)
        {
            pages::allow(&mut pages::preflight(request.headers()), origin);
        }
        let key = http::given_key(request.headers());
        is_json & !key.is_empty() & (http::known_path(request.uri().path()) != "other")
    }
}

fn described(result: Result<usize, ApiError>) -> usize {
    result.unwrap_or_else(|error| error.message().len())
}

/// Writes an answer, as a stream or as a whole.
fn write(
    writer: &mut dyn Writer,
    choice: &mut Choice,
    form: &AnswerForm,
    answer: &[AnswerPiece<'_>],
    is_streamed: bool,
) {
    let tally = Tally::default();
    writer.begin("model.gguf", "fingerprint");
    let tokens = answer.iter().map(|(id, text, logprob)| {
        let logprobs = logprob.zip(*id).map(|(logprob, id)| TokenLogprob {
            id,
            text: (*text).to_owned(),
            logprob,
            bytes: Vec::new(),
        });
        Said::Token(TokenEvent { id: *id, text: (*text).into(), logprobs: logprobs.into_iter().collect() })
    });
    let said: Vec<Said> =
        std::iter::once(Said::Started(form.clone())).chain(tokens).chain([Said::Finished(Box::default())]).collect();
    for said in said {
        for part in choice.take(said) {
            if is_streamed {
                let records = writer.stream(0, part, &tally);
                records.iter().for_each(|record| drop(writer.framing().record(record)));
            } else {
                writer.keep(0, part);
            }
        }
    }
    let end = Tally { is_complete: true, ..tally };
    if is_streamed {
        let _ = (writer.finish(&end), writer.fail(&ApiError::shutting_down()));
    } else {
        let whole = writer.whole(&end);
        assert!(whole.is_object(), "an answer is an object");
    }
}

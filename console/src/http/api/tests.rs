//! Answers that are complete, interrupted, resumed on another server or with another text, from scripted servers.
use std::time::Duration;

use serde_json::json;

use super::{Api, Ask, HttpError, HttpProgress, Kind, model, stream};
use crate::http::fake::{FakeServer, FakeStep, answer, chat_completion, completion};

const PATIENCE: Duration = Duration::from_secs(5);

fn api(url: &str) -> Api {
    Api::new(url.parse().expect("a URL"), None)
}

fn ask() -> Ask {
    Ask { kind: Kind::Text, body: json!({"prompt": "x", "max_tokens": 3}), request_id: "r1".into() }
}

/// The result, and all reported text, with `|` for each repeat. Thoughts are in capitals.
async fn asked(apis: &[Api]) -> (Result<super::HttpAnswer, HttpError>, String) {
    let mut told = String::new();
    let result = stream(apis, &ask(), PATIENCE, &mut |what: HttpProgress<'_>| match what {
        HttpProgress::Thought(text) => told.push_str(&text.to_uppercase()),
        HttpProgress::Text(text) => told.push_str(text),
        HttpProgress::Again(_) => told.push('|'),
    })
    .await;
    (result, told)
}

#[tokio::test]
async fn answer_is_streamed_with_usage_and_timings() {
    let server = FakeServer::start(|_, request| {
        let body: serde_json::Value = serde_json::from_str(&request.body).expect("JSON");
        assert_eq!(body["stream_options"]["include_usage"], true);
        completion(&["O ", "Rom", "eo"])
    });
    let (result, told) = asked(&[api(&server.url())]).await;
    let found = result.expect("it answers");
    assert_eq!((found.text.as_str(), told.as_str(), found.repeats), ("O Romeo", "O Romeo", 0));
    assert_eq!((found.finish_reason.as_deref(), found.model.as_deref()), (Some("length"), Some("m")));
    assert_eq!((&found.usage["completion_tokens"], &found.timings["prompt_ms"]), (&json!(3), &json!(2.5)));
}

/// A server whose first answer is interrupted after two pieces.
fn breaking(again: &'static [&'static str]) -> FakeServer {
    FakeServer::start(move |number, request| {
        assert_eq!(request.header("x-request-id"), Some("r1"));
        match number {
            0 => completion(&["O ", "Rom", "eo"]).into_iter().take(3).chain([FakeStep::Close]).collect(),
            1 => vec![FakeStep::Bytes(answer(503, "", "{}")), FakeStep::Close],
            _ => completion(again),
        }
    })
}

#[tokio::test]
async fn interrupted_answer_resumes_and_different_text_is_an_error() {
    let (result, told) = asked(&[api(&breaking(&["O Ro", "meo, ", "Romeo"]).url())]).await;
    let found = result.expect("it resumes");
    assert_eq!((found.text.as_str(), told.as_str(), found.repeats), ("O Romeo, Romeo", "O Rom||eo, Romeo", 2));

    let server = breaking(&["O Ju", "liet"]);
    let (result, told) = asked(&[api(&server.url())]).await;
    assert_eq!(told, "O Rom||");
    assert!(matches!(result, Err(HttpError::Diverged { after: 2, .. })), "{result:?}");

    let (result, _) = asked(&[api(&breaking(&["O "]).url())]).await;
    assert!(matches!(result, Err(HttpError::Diverged { after: 2, .. })), "{result:?}");
}

#[tokio::test]
async fn thoughts_are_reported_once_and_are_no_text() {
    let deltas = [
        json!({"role": "assistant", "content": ""}),
        json!({"reasoning_content": "let ", "reasoning": "let "}),
        json!({"reasoning": "me"}),
        json!({"reasoning_content": " see", "content": null}),
        json!({"content": "4"}),
    ];
    let server = FakeServer::start(move |_, _| chat_completion(&deltas));
    let (result, told) = asked(&[api(&server.url())]).await;
    let found = result.expect("it answers");
    assert_eq!((found.thought.as_str(), found.text.as_str(), told.as_str()), ("let me see", "4", "LET ME SEE4"));
}

#[tokio::test]
async fn repeated_answer_with_another_thought_is_an_error() {
    for (again, expected) in [("let me see", None), ("let us see", Some(4)), ("let", Some(3))] {
        let server = FakeServer::start(move |number, _| {
            let thought = if number == 0 { "let me" } else { again };
            let steps = chat_completion(&[json!({"reasoning": thought}), json!({"content": "4"})]);
            match number {
                0 => steps.into_iter().take(2).chain([FakeStep::Close]).collect(),
                _ => steps,
            }
        });
        match (asked(&[api(&server.url())]).await, expected) {
            ((Ok(_), told), None) => assert_eq!(told, "LET ME| SEE4"),
            ((Err(HttpError::Diverged { after, .. }), _), Some(place)) => assert_eq!(after, place, "{again}"),
            (other, _) => panic!("{again}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn unreachable_server_is_skipped_but_refusal_is_final() {
    let server = FakeServer::start(|_, _| completion(&["a"]));
    let (result, _) = asked(&[api("127.0.0.1:1"), api(&server.url())]).await;
    assert_eq!(result.map(|answer| answer.text), Ok("a".into()));

    let away = asked(&[api("127.0.0.1:1"), api("127.0.0.1:1")]).await.0;
    assert!(matches!(away, Err(HttpError::Unreachable { .. })), "{away:?}");

    let refusing = FakeServer::start(|_, _| {
        vec![FakeStep::Bytes(answer(
            400,
            "",
            "{\"error\":{\"message\":\"too long\",\"code\":\"context_length_exceeded\"}}",
        ))]
    });
    let (result, _) = asked(&[api(&refusing.url()), api(&server.url())]).await;
    let error = result.expect_err("it refuses");
    assert_eq!((error.code(), error.is_passing()), ("context_length_exceeded", false));
}

#[tokio::test]
async fn error_event_ends_the_answer() {
    let server = FakeServer::start(|_, _| {
        let mut steps = completion(&["a"]);
        steps[2] = crate::http::fake::event("{\"error\":{\"message\":\"node pi2 was lost\",\"code\":\"node_lost\"}}");
        steps
    });
    let (result, told) = asked(&[api(&server.url())]).await;
    assert_eq!(told, "a");
    assert!(result.is_err_and(|error| error.code() == "node_lost"));
}

#[tokio::test]
async fn default_model_is_the_first_one_served() {
    let server = FakeServer::start(|_, _| {
        vec![FakeStep::Bytes(answer(200, "", "{\"data\":[{\"id\":\"bard\"},{\"id\":\"other\"}]}"))]
    });
    let apis = [api("127.0.0.1:1"), api(&server.url())];
    assert_eq!(model(&apis, PATIENCE).await, Ok("bard".into()));
    let later = FakeServer::start(|number, _| {
        vec![FakeStep::Bytes(answer(
            200,
            "",
            if number < 3 { "{\"data\":[]}" } else { "{\"data\":[{\"id\":\"late\"}]}" },
        ))]
    });
    assert_eq!(model(&[api(&later.url())], PATIENCE).await, Ok("late".into()));
    let empty = FakeServer::start(|_, _| vec![FakeStep::Bytes(answer(200, "", "{\"data\":[]}"))]);
    assert!(model(&[api(&empty.url())], PATIENCE).await.is_err_and(|error| error.code() == "no_model"));
}

#[test]
fn invalid_event_is_an_error_or_adds_nothing() {
    for (data, is_right) in
        [("[]", true), ("7", true), ("{\"choices\":[]}", true), ("{\"choices\":{}}", true), ("{", false), ("", false)]
    {
        let taken = super::Gathering::default().take("a:1", data);
        assert_eq!(taken.is_ok_and(|text| text.is_empty()), is_right, "{data}");
    }
}

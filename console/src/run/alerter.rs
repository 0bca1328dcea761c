//! Delivers alerts: the terminal's bell, a desktop notification, the operator's command or URL. Commands and requests
//! run one at a time on a task of their own, each with a time limit; what the queue cannot hold is dropped.
use std::{process::Stdio, time::Duration};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{io::AsyncWriteExt, process::Command, sync::mpsc, time::timeout};

use crate::{
    http::{Api, HttpRequest, Url},
    state::alerts::{Alert, AlertPreferences},
    update::event::Event,
    view::format::shorten,
};

/// Most alerts that wait for the command or the URL.
const QUEUE: usize = 16;
/// Time limit for the command and for the request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest desktop notification, in cells.
const NOTIFICATION: usize = 200;

/// Delivers the alerts of a dashboard.
pub(super) struct Alerter {
    how: AlertPreferences,
    queue: Option<mpsc::Sender<Alert>>,
    news: mpsc::Receiver<Event>,
    /// Keeps `news` open without a command or URL.
    _sender: mpsc::Sender<Event>,
}

impl Alerter {
    /// Starts the task for the command and the URL, if either is set.
    pub(super) fn start(how: AlertPreferences) -> Self {
        let (sender, news) = mpsc::channel(QUEUE);
        let queue = (how.command.is_some() || how.url.is_some()).then(|| {
            let (queue, alerts) = mpsc::channel(QUEUE);
            tokio::spawn(deliver(how.clone(), alerts, sender.clone()));
            queue
        });
        Self { how, queue, news, _sender: sender }
    }

    /// A failure of the command or the URL, as a message.
    pub(super) async fn news(&mut self) -> Event {
        // Never closed: a sender is kept in this struct.
        self.news.recv().await.expect("this struct keeps a sender")
    }

    /// Delivers an alert; returns the bytes that the terminal receives.
    pub(super) fn give(&self, alert: Alert) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.how.desktop {
            let text = shorten(&format!("Bramble: {}", alert.sentence()), NOTIFICATION);
            bytes.extend(format!("\x1b]9;{text}\x1b\\").bytes());
        }
        if self.how.bell {
            bytes.push(b'\x07');
        }
        if let Some(queue) = &self.queue {
            // A full queue drops it: the events page still has it.
            let _ = queue.try_send(alert);
        }
        bytes
    }
}

/// Runs the command and sends the request for each alert, until the dashboard ends.
async fn deliver(how: AlertPreferences, mut alerts: mpsc::Receiver<Alert>, news: mpsc::Sender<Event>) {
    while let Some(alert) = alerts.recv().await {
        let mut failures = Vec::new();
        if let Some(command) = &how.command {
            failures
                .extend(run(command, &alert).await.err().map(|why| format!("alert_command in dashboard.toml: {why}")));
        }
        if let Some(url) = &how.url {
            failures.extend(post(url, &alert).await.err().map(|why| format!("alert_url in dashboard.toml: {why}")));
        }
        for failure in failures {
            // Messages that the dashboard cannot take are dropped.
            let _ = news.try_send(Event::Said(failure));
        }
    }
}

/// Runs a command with the alert in its environment and as JSON on its standard input.
async fn run(command: &str, alert: &Alert) -> Result<(), String> {
    let mut child = Command::new("sh")
        .args(["-c", command])
        .env("BRAMBLE_ALERT", alert.kind.name())
        .env("BRAMBLE_ALERT_SEVERITY", alert.kind.severity().name())
        .env("BRAMBLE_ALERT_NODE", &alert.node)
        .env("BRAMBLE_ALERT_TEXT", alert.sentence())
        .stdin(Stdio::piped())
        // The dashboard owns the terminal.
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A group of its own: the time limit also ends what the shell started.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| error.to_string())?;
    let group = child.id().map(|pid| Pid::from_raw(pid.cast_signed()));
    let input = child.stdin.take();
    let ended = timeout(PATIENCE, async {
        if let Some(mut input) = input {
            // A command may ignore its input and end first.
            let _ = input.write_all(format!("{}\n", alert.json()).as_bytes()).await;
        }
        child.wait().await
    });
    match ended.await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(format!("it ended with {status}; try it in a shell")),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => {
            // The shell still runs, so that its id is that of its group. The signal fails if the group has just ended.
            let _ = group.map(|group| killpg(group, Signal::SIGKILL));
            Err(format!("it was killed after {} s", PATIENCE.as_secs()))
        }
    }
}

/// Sends the alert as JSON in a POST request.
async fn post(url: &str, alert: &Alert) -> Result<(), String> {
    let url: Url = url.parse().map_err(|error: crate::http::HttpError| error.to_string())?;
    let (api, body) = (Api::new(url, None), alert.json());
    let request = HttpRequest { path: "", body: Some(&body), request_id: None };
    let sent = async { api.send(&request, PATIENCE).await?.succeeded(PATIENCE).await.map(drop) };
    match timeout(PATIENCE, sent).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        http::fake::{FakeServer, FakeStep, answer},
        state::alerts::AlertKind,
    };

    fn alert() -> Alert {
        Alert { kind: AlertKind::NodeLost, node: "pi2".into(), text: "connection lost".into(), unix_ms: 7 }
    }

    #[tokio::test]
    async fn command_receives_the_alert_as_json_and_in_its_environment() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("out");
        let command = format!("cat > {0}; echo \"$BRAMBLE_ALERT $BRAMBLE_ALERT_NODE\" >> {0}", file.display());
        run(&command, &alert()).await.expect("it succeeds");
        let text = std::fs::read_to_string(&file).expect("it wrote the file");
        let (json, environment) = text.split_once('\n').expect("two lines");
        let json: serde_json::Value = serde_json::from_str(json).expect("valid JSON");
        assert_eq!((json["kind"].as_str(), json["node"].as_str()), (Some("node-lost"), Some("pi2")));
        assert_eq!(environment, "node-lost pi2\n");
        assert!(run("exit 3", &alert()).await.is_err_and(|why| why.contains('3')));
    }

    #[tokio::test]
    async fn url_receives_the_alert_as_json_and_its_refusal_is_an_error() {
        let (sender, requests) = std::sync::mpsc::channel();
        let server = FakeServer::start(move |number, request| {
            sender.send(request.clone()).expect("the test runs");
            vec![FakeStep::Bytes(answer(if number == 0 { 204 } else { 500 }, "", ""))]
        });
        let url = format!("{}/bramble", server.url());
        post(&url, &alert()).await.expect("it is accepted");
        let request = requests.recv_timeout(PATIENCE).expect("a request arrives");
        assert!(request.line.starts_with("POST /bramble HTTP/"), "{}", request.line);
        assert_eq!(request.body, alert().json());
        assert!(post(&url, &alert()).await.is_err_and(|why| why.contains("500")));
    }

    #[tokio::test]
    async fn failures_are_reported_and_the_terminal_gets_bell_and_notification() {
        let how = AlertPreferences { bell: true, desktop: true, command: Some("exit 1".into()), url: None };
        let mut alerter = Alerter::start(how);
        let bytes = alerter.give(alert());
        assert_eq!(String::from_utf8_lossy(&bytes), "\x1b]9;Bramble: pi2: connection lost\x1b\\\x07");
        let news = timeout(PATIENCE, alerter.news()).await.expect("the command fails at once");
        assert!(matches!(&news, Event::Said(text) if text.contains("alert_command")), "{news:?}");
    }
}

//! Attacks nodes with a viewer's key: `hostile_viewer --key viewer.key --nodes A,B --model M --seconds 10`. Opens
//! sessions that request a lot and never read, sends messages that never end, starts 128 watches in one session, uses
//! names of 15 kB with refused requests, and opens as many idle sessions as the node accepts. Prints as a JSON object
//! how often each was accepted. Used by `tests/security/hostile_tenant.py`.
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::ensure;
use clap::Parser;
use common::{fault::FaultKind, ids::RequestId};
use protocol::{
    connection::{Connection, dial_with, write},
    handshake::{Hello, Identity, Purpose},
    message::{MESSAGE_BYTES_MAX, Request, RequestBody},
    models::{ModelsRequest, PIECE_BYTES_MAX},
    noise::{
        key::Role,
        keyring::{self, Keyring},
    },
};
use serde::Serialize;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Instant, sleep, timeout, timeout_at},
};

/// Sessions of each kind per node.
const UNREAD: usize = 8;
const UNFINISHED: usize = 120;
const WATCHING: usize = 2;
const NAMED: usize = 4;
const IDLE: usize = 400;
/// Requests in a session that does not read.
const PIECES: u64 = 230;
const WATCHES: u64 = 128;
const NAME_BYTES: usize = 15_000;
/// The node applies back-pressure if a write takes longer than this.
const WRITE: Duration = Duration::from_secs(2);
/// Pause before a closed session is opened again.
const PAUSE: Duration = Duration::from_millis(250);

/// Attack nodes with a viewer's key.
#[derive(Debug, Parser)]
struct Arguments {
    /// File with the viewer's key
    #[arg(long)]
    key: PathBuf,
    /// Addresses of the nodes
    #[arg(long, value_delimiter = ',', value_name = "ADDR:PORT,..")]
    nodes: Vec<String>,
    /// A model file that is present on the nodes
    #[arg(long)]
    model: String,
    /// Duration of the attack
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
}

/// The behaviour of a session.
#[derive(Clone, Copy, Debug)]
enum Attack {
    Unread,
    Unfinished,
    Watching,
    Named,
    Idle,
}

const ATTACKS: [(Attack, usize); 5] = [
    (Attack::Unread, UNREAD),
    (Attack::Unfinished, UNFINISHED),
    (Attack::Watching, WATCHING),
    (Attack::Named, NAMED),
    (Attack::Idle, IDLE),
];

/// Counts of accepted and refused sessions and of the messages written in them.
#[derive(Debug, Default)]
struct Count {
    accepted: AtomicU64,
    refused: AtomicU64,
    requests: AtomicU64,
    held_back: AtomicU64,
}

/// [`Count`] in its printed form.
#[derive(Debug, Serialize)]
struct Counted {
    attack: String,
    accepted: u64,
    refused: u64,
    requests: u64,
    held_back: u64,
}

/// State shared by all sessions.
#[derive(Debug)]
struct Plan {
    keyring: Keyring,
    model: String,
    end: Instant,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let held = keyring::read(&arguments.key)?;
    let keyring = Keyring::with(Role::Viewer, held);
    ensure!(arguments.seconds > 0.0 && arguments.seconds < 3600.0, "--seconds must be between 0 and 3600");
    let end = Instant::now() + Duration::from_secs_f64(arguments.seconds);
    let plan = Arc::new(Plan { keyring, model: arguments.model, end });
    let mut tasks = Vec::new();
    let counts: Vec<(Attack, Arc<Count>)> = ATTACKS.iter().map(|(attack, _)| (*attack, Arc::default())).collect();
    for node in &arguments.nodes {
        for ((attack, sessions), (_, count)) in ATTACKS.iter().zip(&counts) {
            for _ in 0..*sessions {
                tasks.push(tokio::spawn(repeat(*attack, node.clone(), Arc::clone(&plan), Arc::clone(count))));
            }
        }
    }
    for task in tasks {
        task.await?;
    }
    let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
    println!(
        "{}",
        serde_json::to_string(
            &counts
                .iter()
                .map(|(attack, count)| Counted {
                    attack: format!("{attack:?}").to_lowercase(),
                    accepted: read(&count.accepted),
                    refused: read(&count.refused),
                    requests: read(&count.requests),
                    held_back: read(&count.held_back),
                })
                .collect::<Vec<_>>()
        )?
    );
    Ok(())
}

/// Opens one session after another until the time is over.
async fn repeat(attack: Attack, node: String, plan: Arc<Plan>, count: Arc<Count>) {
    while Instant::now() < plan.end {
        match open(attack, &node, &plan).await {
            Ok(connection) => {
                count.accepted.fetch_add(1, Ordering::Relaxed);
                // If the node ends the session, it has detected the attack.
                let _ = timeout_at(plan.end, strike(attack, connection, &plan, &count)).await;
            }
            Err(_) => {
                count.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
        let _ = timeout_at(plan.end, sleep(PAUSE)).await;
    }
}

async fn open(attack: Attack, node: &str, plan: &Plan) -> Result<Connection, FaultKind> {
    let name = if matches!(attack, Attack::Named) { "n".repeat(NAME_BYTES) } else { "viewer@wall".to_owned() };
    let identity = Identity { name, build: "hostile".into(), numeric: 0, machine: String::new(), cores: Vec::new() };
    let hello = Hello { identity, purpose: Purpose::Console };
    dial_with(node, &hello, &plan.keyring).await.map(|(connection, _)| connection).map_err(|fault| fault.kind)
}

/// Runs the attack on an open session; returns when the node closes it or stops reading for good.
async fn strike(attack: Attack, mut connection: Connection, plan: &Plan, count: &Count) {
    match attack {
        Attack::Unread => {
            for number in 1..=PIECES {
                let offset = (number % 4) * PIECE_BYTES_MAX as u64;
                let read = ModelsRequest::Read { model: plan.model.clone(), offset };
                if !send(&mut connection, number, RequestBody::Models(Box::new(read)), count).await {
                    break;
                }
            }
            // Never read.
            sleep(Duration::from_secs(3600)).await;
        }
        Attack::Unfinished => {
            let length = MESSAGE_BYTES_MAX as u32;
            let body = vec![7; MESSAGE_BYTES_MAX - 64];
            let begun = [&length.to_le_bytes()[..], &body].concat();
            if !matches!(timeout(WRITE, connection.stream.write_all(&begun)).await, Ok(Ok(()))) {
                count.held_back.fetch_add(1, Ordering::Relaxed);
            }
            until_closed(&mut connection).await;
        }
        Attack::Watching => {
            for number in 1..=WATCHES {
                if !send(&mut connection, number, RequestBody::Watch { interval_ms: 1000 }, count).await {
                    return;
                }
            }
            until_closed(&mut connection).await;
        }
        Attack::Named => {
            for number in 1.. {
                if !send(&mut connection, number, RequestBody::Restart, count).await {
                    return;
                }
                if number % 64 == 0 {
                    drain(&mut connection).await;
                }
            }
        }
        Attack::Idle => until_closed(&mut connection).await,
    }
}

/// Sends a request; returns whether the node accepted it in time.
async fn send(connection: &mut Connection, number: u64, body: RequestBody, count: &Count) -> bool {
    let request = Request { id: RequestId(number), body };
    let sent = write(&mut connection.stream, &mut connection.seals.out, connection.version, &request);
    match timeout(WRITE, sent).await {
        Ok(Ok(())) => {
            count.requests.fetch_add(1, Ordering::Relaxed);
            true
        }
        Ok(Err(_)) => false,
        Err(_) => {
            count.held_back.fetch_add(1, Ordering::Relaxed);
            false
        }
    }
}

/// Reads what has arrived and discards it.
async fn drain(connection: &mut Connection) {
    let mut bytes = vec![0; 1 << 16];
    let _ = timeout(Duration::from_millis(1), connection.stream.read(&mut bytes)).await;
}

/// Reads and discards until the node closes the connection.
async fn until_closed(connection: &mut Connection) {
    let mut bytes = vec![0; 1 << 16];
    while matches!(connection.stream.read(&mut bytes).await, Ok(count) if count > 0) {}
}

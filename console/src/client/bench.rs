//! Runs one benchmark on one node, with progress and cancellation.
use std::{pin::pin, time::Duration};

use common::fault::{Fault, FaultKind};
use protocol::{
    bench::{BENCH_SECONDS_MAX, Bench, BenchLinks, LINK_SECONDS_MAX},
    message::{RequestBody, ResponseBody},
};
use telemetry::{BenchFound, BenchProgress, LinkBench};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{generate::silence, identify::unexpected, session::Session};

/// Time limit for a cancelled benchmark to end.
const CANCEL: Duration = Duration::from_secs(5);
/// Time limit for a node that hangs; a healthy node ends a benchmark by itself.
const PATIENCE: Duration = Duration::from_secs(BENCH_SECONDS_MAX as u64 + 60);

/// Time limit of a link benchmark: newly opened links are tuned first, and the last all-reduce may take long.
const LINKS: Duration = Duration::from_secs(LINK_SECONDS_MAX as u64 + 50);

/// Times all-reduces of a head's stage on its links.
///
/// # Errors
/// The head refuses, a node is lost, or the time limit is exceeded.
pub async fn bench_links(session: &Session, wanted: BenchLinks) -> Result<LinkBench, Fault> {
    let mut reply = session.ask(RequestBody::BenchLinks(wanted)).await?;
    tokio::select! {
        body = reply.next("timing all-reduces", LINKS) => match body? {
            ResponseBody::BenchedLinks(found) => Ok(found),
            other => Err(unexpected(session, &other)),
        },
        fault = silence(session) => Err(fault),
    }
}

/// Runs a benchmark to its end.
///
/// # Errors
/// The node refuses, or the benchmark fails or is cancelled.
pub async fn bench(
    session: &Session,
    bench: Bench,
    tell: &(dyn Fn(&BenchProgress) + Sync),
    cancel: &CancellationToken,
) -> Result<BenchFound, Fault> {
    let mut reply = session.ask(RequestBody::Bench(Box::new(bench))).await?;
    let mut overdue = pin!(sleep(PATIENCE));
    let mut silent = pin!(silence(session));
    let mut cancelled = false;
    loop {
        tokio::select! {
            body = reply.received() => match body? {
                ResponseBody::Benching(progress) => tell(&progress),
                ResponseBody::Benched(found) => return Ok(found),
                other => return Err(unexpected(session, &other)),
            },
            () = cancel.cancelled(), if !cancelled => {
                cancelled = true;
                overdue.set(sleep(CANCEL));
                session.cancel(reply.id).await?;
            }
            fault = &mut silent => return Err(fault),
            () = &mut overdue => {
                let (what, patience) = if cancelled { ("cancelling", CANCEL) } else { ("the benchmark", PATIENCE) };
                let kind = FaultKind::Timeout { what: what.into(), seconds: patience.as_secs() as u32 };
                return Err(Fault::new(&session.identity.name, kind));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use common::fault::Loss;
    use protocol::bench::BenchKernels;

    use super::*;
    use crate::client::fake_node::{FakeNode, Script};

    fn request() -> Bench {
        let names = Vec::new;
        Bench::Kernels(BenchKernels {
            model: None,
            threads: 1,
            formats: names(),
            tables: names(),
            tokens: Vec::new(),
            rows: 16,
            columns: 256,
            repeats: 1,
        })
    }

    async fn asked(script: Script) -> (Vec<String>, Result<BenchFound, Fault>) {
        let node = FakeNode::start("pi1", script).await;
        let session = crate::client::session::open(&node.address).await.expect("it listens");
        let told = Mutex::new(Vec::new());
        let result = bench(
            &session,
            request(),
            &|progress: &BenchProgress| told.lock().expect("the lock is not poisoned").push(progress.to_string()),
            &CancellationToken::new(),
        )
        .await;
        (told.into_inner().expect("the lock is not poisoned"), result)
    }

    #[tokio::test]
    async fn progress_precedes_results_and_hung_node_is_lost() {
        let (told, found) = asked(Script::default()).await;
        assert_eq!(told, ["1/1 Q4_0 of scalar"]);
        assert!(matches!(found, Ok(BenchFound::Kernels(_))), "{found:?}");
        let (told, found) = asked(Script { is_mute: true, ..Script::default() }).await;
        let lost = Fault::new("pi1", FaultKind::NodeLost { how: Loss::Silent });
        assert_eq!((told.len(), found), (0, Err(lost)));
    }
}

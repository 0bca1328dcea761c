//! One bench on one node: progress as it comes, cancel when asked to.
use std::{pin::pin, time::Duration};

use shared::{
    protocol::{
        bench::{BENCH_SECONDS_MAX, Bench, BenchLinks, LINK_SECONDS_MAX},
        error::{Fault, FaultKind},
        message::{RequestBody, ResponseBody},
    },
    telemetry::{BenchFound, BenchProgress, LinkBench},
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{assign::unexpected, generate::silence, session::Session};

/// A cancelled bench must end within this.
const CANCEL: Duration = Duration::from_secs(5);
/// The node ends a bench by itself; this is for one that hangs.
const PATIENCE: Duration = Duration::from_secs(BENCH_SECONDS_MAX as u64 + 60);

/// Links that were opened a moment ago are tuned first, and the last all-reduce may be a long one.
const LINKS: Duration = Duration::from_secs(LINK_SECONDS_MAX as u64 + 50);

/// Times all-reduces of a head's stage on its links.
///
/// # Errors
/// The head refuses it, a node was lost, or nothing came in time.
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

/// Runs a bench to its end.
///
/// # Errors
/// The node refuses it, it failed, or it was cancelled.
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
                let (what, patience) = if cancelled { ("cancelling", CANCEL) } else { ("the bench", PATIENCE) };
                let kind = FaultKind::Timeout { what: what.into(), seconds: patience.as_secs() as u32 };
                return Err(Fault::new(&session.identity.name, kind));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use shared::protocol::{bench::BenchKernels, error::Loss};

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
        let tell = |progress: &BenchProgress| told.lock().expect("nobody panics").push(progress.to_string());
        let result = bench(&session, request(), &tell, &CancellationToken::new()).await;
        (told.into_inner().expect("nobody panics"), result)
    }

    #[tokio::test]
    async fn progress_is_told_before_what_was_found_and_a_node_that_hangs_is_lost() {
        let (told, found) = asked(Script::default()).await;
        assert_eq!(told, ["1/1 Q4_0 of scalar"]);
        assert!(matches!(found, Ok(BenchFound::Kernels(_))), "{found:?}");
        let (told, found) = asked(Script { is_mute: true, ..Script::default() }).await;
        let lost = Fault::new("pi1", FaultKind::NodeLost { how: Loss::Silent });
        assert_eq!((told.len(), found), (0, Err(lost)));
    }
}

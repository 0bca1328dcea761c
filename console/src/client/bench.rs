//! One bench on one node: progress as it comes, cancel when asked to.
use std::{pin::pin, time::Duration};

use shared::{
    protocol::{
        bench::{BENCH_SECONDS_MAX, Bench},
        error::{Fault, FaultKind},
        message::{RequestBody, ResponseBody},
    },
    telemetry::{BenchFound, BenchProgress},
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{assign::unexpected, generate::silence, session::Session};

/// A cancelled bench must end within this.
const CANCEL: Duration = Duration::from_secs(5);
/// The node ends a bench by itself; this is for one that hangs.
const PATIENCE: Duration = Duration::from_secs(BENCH_SECONDS_MAX as u64 + 60);

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

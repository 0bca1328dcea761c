//! The accepting end of a measured link: echoes small messages and streams, only to the node that dialled.
use std::time::Duration;

use common::fault::FaultKind;
use protocol::{
    connection::{Connection, send_welcome},
    handshake::{Identity, Welcome},
    network::{CHUNK_BYTES, LINE_SECONDS_MAX, Probe, STREAM_BYTES_MAX},
};
use tokio::time::{Instant, timeout, timeout_at};

use super::{LINES_MAX, Network, check_quiet, line::ProbeLink};
use crate::node::driver::bench_task::BenchSources;

/// Body of every message of a stream.
static CHUNK: [u8; CHUNK_BYTES] = [0; CHUNK_BYTES];

impl Network {
    /// Accepts a node that wants to measure its link to this one, unless this node is busy or has too many such links.
    pub(in crate::node::driver) fn accept(
        &self,
        mut connection: Connection,
        identity: &Identity,
        sources: BenchSources<'_>,
    ) {
        // A node that serves stays ready while it loads its next topology or measures its own links.
        let node = sources.node;
        let free = check_quiet(sources).and_then(|()| node.check_assigning()).and_then(|()| node.check_benching());
        let verdict = free.and_then(|()| {
            let permit = self.lines.clone().try_acquire_owned();
            permit.map_err(|_| FaultKind::Full { what: "measured links".into(), limit: LINES_MAX as u32 })
        });
        let welcome = match &verdict {
            Ok(_) => Welcome::Accepted(sources.context.identity.clone()),
            Err(kind) => Welcome::Refused(sources.context.fault(kind.clone())),
        };
        let peer = identity.name.clone();
        tokio::spawn(timeout(Duration::from_secs(u64::from(LINE_SECONDS_MAX)), async move {
            let welcomed = send_welcome(&mut connection, &welcome).await;
            if let (Ok(()), Ok(_permit)) = (welcomed, verdict) {
                let why = serve(ProbeLink::new(connection)).await;
                tracing::debug!(peer, "a measured link ended: {why}");
            }
        }));
    }
}

/// Answers probes until the connection ends; returns the reason.
async fn serve(mut line: ProbeLink) -> FaultKind {
    loop {
        let probe = match line.receive().await {
            Ok(body) => Probe::decode(body),
            Err(kind) => return kind,
        };
        let sent = match probe {
            Some(Probe::Echo) => line.send(&Probe::Echo.encode()).await,
            Some(Probe::Stream { ms }) => stream(&mut line, Duration::from_millis(u64::from(ms))).await,
            None => return FaultKind::Malformed { reason: "a probe that is neither an echo nor a stream".into() },
        };
        if let Err(kind) = sent {
            return kind;
        }
    }
}

async fn stream(line: &mut ProbeLink, time: Duration) -> Result<(), FaultKind> {
    let end = Instant::now() + time;
    let mut rest = STREAM_BYTES_MAX;
    while rest >= CHUNK_BYTES as u64 && Instant::now() < end {
        rest -= CHUNK_BYTES as u64;
        // A timeout may cut a message in the middle, so the line ends with it. The peer stops reading at `end`.
        let sent = timeout_at(end + Duration::from_secs(1), line.send(&CHUNK)).await;
        let seconds = 1 + time.as_secs() as u32;
        sent.map_err(|_| FaultKind::Timeout { what: "a stream".into(), seconds })??;
    }
    Ok(())
}

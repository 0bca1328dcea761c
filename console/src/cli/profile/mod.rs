//! `console generate --profile`: completes a text and shows where the time went: table, bottleneck, trace, folded
//! stacks.
mod arrivals;
pub(super) mod straggler;
pub(super) mod table;
mod trace;
mod verdict;

use std::{ops::Range, path::Path, sync::Arc};

use anyhow::Context;
use collectives::Table;
use common::{
    fault::{Fault, FaultKind, Loss},
    ids::MemberIndex,
};
use serde_json::json;
use telemetry::{Health, SyncRecord};
use topology::{Member, Topology};
use trace::RankRecords;

use crate::cli::{
    Failure,
    generate::{complete, head, object, prompt, session_of},
    shared::{interrupts::Interrupts, options, output},
    topology::ensure::{Obtained, obtain},
};
use crate::client::{
    assign::{records, report},
    identify::identify,
    session::Session,
};

/// The machines of the peers of a member.
pub(super) fn beside<'a>(member: usize, healths: impl Iterator<Item = &'a Health>) -> Vec<&'a Health> {
    healths.enumerate().filter(|(other, _)| *other != member).map(|(_, health)| health).collect()
}

/// Runs the command.
pub(super) async fn run(options: options::Generate) -> Result<u8, Failure> {
    let (generate, files) = (&options.completing, &options.profiling);
    let request = generate.sampling.request(prompt(generate)?, generate.logprobs);
    let seed = request.sampling.seed;
    let mut interrupts = Interrupts::listen()?;
    let asked = generate.assignment.asked(options.model.as_deref().unwrap_or_default());
    let obtained = obtain(&options.nodes, &asked, "complete and profile the text", generate.consent, generate.json);
    let Some(Obtained { sessions, assigned }) = interrupts.end(obtained).await? else { return Ok(0) };
    let head = interrupts.end(head(&sessions, &assigned.topology)).await?;
    let replica = replica(&assigned.topology, head);
    // Only one head may answer, because records and totals belong to one replica.
    let members = &assigned.topology.members[replica];
    let sessions = of_members(&sessions, members)?;
    let card = async { Ok::<_, Failure>(identify(&sessions[0], &assigned.topology.model).await?) };
    let card = interrupts.end(card).await?;
    let before = interrupts.end(later(&sessions, 0)).await?;
    // The head numbers the steps, so steps of earlier requests have lower numbers on every rank.
    let seen = before.iter().flatten().map(|record| record.step).max().unwrap_or(0);
    let completion = complete(&sessions[..1], request, false, &mut interrupts).await?;
    let records = interrupts.end(later(&sessions, seen)).await?;
    let names: Vec<String> = members.iter().map(|member| output::clean(&member.name)).collect();
    let ranks = assigned.topology.place(head).group.len();
    let records = RankRecords { names: &names, ranks, records: &records };
    let (healths, tables) = interrupts.end(reports(&sessions)).await?;
    let others = |member: usize| beside(member, healths.iter());
    let causes = healths.iter().enumerate().map(|(member, health)| health.cause_beside(&others(member)));
    let causes: Vec<Option<String>> = causes.map(|cause| Some(cause?.to_string())).collect();
    let verdict = verdict::verdict(&completion.finished.ranks, &records, &causes);
    let straggler = straggler::straggler(&records);
    let arrivals = arrivals::rows(&records);
    let say = arrivals::sentences(&arrivals, &names, ranks);
    if let Some(path) = &files.trace {
        write(path, &trace::events(&records).to_string())?;
    }
    if let Some(path) = &files.folded {
        write(path, &trace::folded(&records))?;
    }
    if let Some(path) = &files.records {
        write(path, &json!({"ranks": ranks, "records": records.records}).to_string())?;
    }
    if generate.json {
        let mut object = object(&completion, (&assigned, head), seed, generate.logprobs > 0);
        object["bottleneck"] = json!(verdict);
        let straggler = straggler
            .as_ref()
            .map(|found| found.object(&names[found.member], &healths[found.member], &others(found.member)));
        object["arrivals"] = arrivals::objects(&arrivals, &names);
        object["arrivals_verdict"] = json!(say);
        object["straggler"] = json!(straggler);
        output::line(&object.to_string());
    } else {
        let place = assigned.topology.place(head);
        let (embedding_length, sizes) = (card.embedding_length as usize, card.sizes().ok());
        let exchanged = table::Exchanged { embedding_length, spec: sizes.as_ref().map(|sizes| &sizes.spec) };
        let lines = table::lines(&completion.finished, &assigned.topology, place.replica, exchanged, &tables);
        lines.iter().for_each(|line| output::line(line));
        let table = arrivals::lines(&arrivals, &names);
        table.first().into_iter().for_each(|_| output::line(""));
        table.iter().for_each(|line| output::line(line));
        output::line(&format!("\n{}", output::clean(&verdict)));
        if let Some(found) = &straggler {
            let sentence = found.sentence(&names[found.member], &healths[found.member], &others(found.member));
            output::line(&output::clean(&sentence));
        }
        say.iter().for_each(|sentence| output::line(sentence));
    }
    Ok(completion.interrupted.unwrap_or(0))
}

/// The member indices of a head's replica.
fn replica(topology: &Topology, head: MemberIndex) -> Range<usize> {
    topology.layout.members(topology.place(head).replica)
}

/// The sessions of members, in their order.
fn of_members(sessions: &[Arc<Session>], members: &[Member]) -> Result<Vec<Arc<Session>>, Fault> {
    let open = members.iter().map(|member| {
        let lost = FaultKind::NodeLost { how: Loss::Reset };
        session_of(sessions, member).cloned().ok_or_else(|| Fault::new(&member.name, lost))
    });
    open.collect()
}

/// The all-reduces of each rank after step `seen`.
async fn later(sessions: &[Arc<Session>], seen: u64) -> Result<Vec<Vec<SyncRecord>>, Failure> {
    let mut all = Vec::with_capacity(sessions.len());
    for session in sessions {
        let mut list = records(session).await?;
        list.retain(|record| record.step > seen);
        all.push(list);
    }
    Ok(all)
}

/// Machine health and all-reduce table of each node, from a report at most one second older than the end of the
/// run.
pub(super) async fn reports(sessions: &[Arc<Session>]) -> Result<(Vec<Health>, Vec<Option<Table>>), Failure> {
    let mut found = (Vec::with_capacity(sessions.len()), Vec::with_capacity(sessions.len()));
    for session in sessions {
        let report = report(session).await?;
        found.0.push(report.health);
        found.1.push(report.collectives);
    }
    Ok(found)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}

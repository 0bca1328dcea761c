//! A gateway that behaves like the daemon's: it sends a request to a head, continues it on another head when that one
//! is lost, and ends it with all its tokens or with one error.
use std::time::Duration;

use common::{
    fault::{Fault, FaultKind},
    ids::RequestId,
    sampling::SamplingParameters,
};
use protocol::message::{Generate, Prompt, Request, RequestBody, ResponseBody};

use crate::simulation::{
    network::Packet,
    world::{Event, World, name, ranks::token},
};

/// Interval between two attempts.
const AGAIN: Duration = Duration::from_millis(250);
/// A request that no head accepts for this long ends with an error.
const PATIENCE: Duration = Duration::from_secs(30);
/// A head that sends nothing for this long is abandoned.
const SILENT: Duration = Duration::from_secs(5);

/// A client's request.
#[derive(Debug)]
pub(crate) struct Asked {
    seed: u64,
    length: u32,
    tokens: Vec<u32>,
    /// The current attempt: its session, the engine run that feeds it, and the time of the last message.
    attempt: Option<(u64, Option<u64>, Duration)>,
    next: usize,
    /// Time since which no head has the request.
    waits: Duration,
    /// The outcome: all tokens, or an error.
    pub(crate) ended: Option<Result<(), String>>,
}

impl World {
    /// Sends a request at a time.
    pub(crate) fn add_request(&mut self, at: Duration, seed: u64, length: u32) {
        let index = self.asked.len();
        let (tokens, attempt, next) = (Vec::new(), None, index);
        self.asked.push(Asked { seed, length, tokens, attempt, next, waits: at, ended: None });
        self.later(at, Event::Ask(index));
    }

    fn end_request(&mut self, index: usize, result: Result<(), String>) {
        if let Err(why) = &result {
            self.story.say(self.now, "client", || format!("request {index} fails: {why}"));
        }
        if self.asked[index].ended.replace(result).is_some() {
            self.violate(format!("request {index} ended twice"));
        }
    }

    /// Sends a request to the next head, or checks whether its current head is still alive.
    pub(crate) fn try_request(&mut self, index: usize) {
        let (now, count) = (self.now, self.machines.len());
        let asked = &mut self.asked[index];
        if asked.ended.is_some() {
            return;
        }
        if let Some((number, _, heard)) = asked.attempt {
            if now.saturating_sub(heard) > SILENT {
                self.give_up(index, number);
            }
            return self.later(AGAIN, Event::Ask(index));
        }
        if now.saturating_sub(asked.waits) > PATIENCE {
            return self.end_request(index, Err("no head for 30 s (503)".into()));
        }
        self.later(AGAIN, Event::Ask(index));
        for turn in 0..count {
            let node = (self.asked[index].next + turn) % count;
            if !self.is_head(node) {
                continue;
            }
            let Some(number) = self.dial(count, node) else { continue };
            let asked = &mut self.asked[index];
            asked.next = node;
            asked.attempt = Some((number, None, now));
            let sampling = SamplingParameters { seed: asked.seed, ..SamplingParameters::default() };
            let mut generate = Generate::new(Prompt::Tokens(vec![1]), asked.length, sampling, Vec::new());
            generate.resumed.clone_from(&asked.tokens);
            (generate.drafts_max, generate.ignores_end) = (0, true);
            self.streams.insert(number, index);
            let request = Request { id: RequestId(1), body: RequestBody::Generate(Box::new(generate)) };
            return self.send(number, 0, Packet::Request(Box::new(request)));
        }
    }

    fn give_up(&mut self, index: usize, number: u64) {
        self.streams.remove(&number);
        let asked = &mut self.asked[index];
        asked.attempt = None;
        asked.next += 1;
        asked.waits = self.now;
        self.send(number, 0, Packet::Closed);
    }

    /// Handles a packet that arrives at the gateway.
    pub(crate) fn at_gateway(&mut self, number: u64, packet: Packet) {
        let Some(index) = self.streams.get(&number).copied() else { return };
        let response = match packet {
            Packet::Response(response, run) => (response.body, run),
            Packet::Closed => {
                if let Some(connection) = self.network.connections.get_mut(&number) {
                    connection.is_open[0] = false;
                }
                return self.give_up(index, number);
            }
            _ => return,
        };
        match response {
            (ResponseBody::Token(event), run) => self.took_token(index, event.id, run),
            (ResponseBody::Finished(_), _) => {
                self.streams.remove(&number);
                let asked = &self.asked[index];
                if asked.tokens.len() != asked.length as usize {
                    let (has, wanted) = (asked.tokens.len(), asked.length);
                    self.violate(format!("request {index} finished with {has} of {wanted} tokens"));
                }
                self.end_request(index, Ok(()));
                self.send(number, 0, Packet::Closed);
            }
            (ResponseBody::Failed(fault), _) => self.failed(index, number, &fault),
            _ => {
                if let Some((_, _, heard)) = &mut self.asked[index].attempt {
                    *heard = self.now;
                }
            }
        }
    }

    fn took_token(&mut self, index: usize, id: Option<u32>, run: Option<u64>) {
        let now = self.now;
        let asked = &mut self.asked[index];
        let (Some(id), Some((_, feeds, heard))) = (id, &mut asked.attempt) else { return };
        *heard = now;
        let continues = feeds.is_none() && !asked.tokens.is_empty();
        let is_other = feeds.is_some_and(|feeds| Some(feeds) != run);
        *feeds = run;
        let position = asked.tokens.len();
        let is_right = id == token(asked.seed, position);
        asked.tokens.push(id);
        if continues {
            let head = name(asked.next);
            self.story.say(now, "client", || format!("request {index} continues on {head} with token {position}"));
        }
        if is_other {
            self.violate(format!("two runs of the engine feed request {index}"));
        }
        if !is_right {
            self.violate(format!("token {position} of request {index} is wrong, doubled or missing"));
        }
    }

    /// Handles a fault of an attempt; decides as the daemon's gateway does whether another head may continue.
    fn failed(&mut self, index: usize, number: u64, fault: &Fault) {
        match fault.kind {
            FaultKind::NodeLost { .. }
            | FaultKind::Superseded { .. }
            | FaultKind::DrainEnded
            | FaultKind::Draining
            | FaultKind::NotServing { .. }
            | FaultKind::NotHead
            | FaultKind::Excluded { .. }
            | FaultKind::OnlyPrefills
            | FaultKind::QueueFull { .. } => {
                let waits = self.asked[index].waits;
                let had = self.asked[index].attempt.is_some_and(|(_, run, _)| run.is_some());
                self.give_up(index, number);
                if !had {
                    self.asked[index].waits = waits;
                }
            }
            _ => {
                self.streams.remove(&number);
                self.asked[index].attempt = None;
                self.end_request(index, Err(fault.to_string()));
                self.send(number, 0, Packet::Closed);
            }
        }
    }
}

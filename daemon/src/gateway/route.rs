//! Chooses a replica for a request: the least loaded, or the one that has the prompt's beginning cached unless it is
//! much more loaded; none whose circuit breaker is open. Pure: the time is an argument.
use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

/// Consecutive failures that open a replica's circuit breaker.
const FAILURES_MAX: u32 = 3;
/// How long it stays open the first time; doubles each time, up to the maximum.
const OUT: Duration = Duration::from_secs(5);
const OUT_MAX: Duration = Duration::from_secs(60);
/// A replica is slow if its time per token is this many times the median of the others, and above the floor.
const SLOW: f64 = 3.0;
const SLOW_MS_MIN: f64 = 5.0;
/// Up to this factor, replicas count as equally fast: times per token vary with the other requests in the batch.
const CLEARLY: f64 = 1.2;
/// Answers needed before a replica is considered slow.
const SAMPLES_MIN: u32 = 5;
/// Age at which a mean no longer counts for spreading requests.
const SAMPLES_AGE: Duration = Duration::from_secs(60);
/// Weight of the latest answer in the mean.
const LATEST: f64 = 0.3;
/// Most remembered prompt beginnings.
const PREFIXES_MAX: usize = 4096;

/// One replica of a running topology.
#[derive(Clone, Debug)]
pub struct Replica {
    /// `ADDRESS:PORT` of its head.
    pub head: String,
    /// The head's name.
    pub name: String,
    /// Number of concurrent requests.
    pub slots: u32,
    /// Requests that run and wait, from the head's latest report.
    pub requests: u32,
    /// Time of that report.
    pub at: Instant,
    /// Whether it takes requests.
    pub is_serving: bool,
}

/// Outcome of a request on a replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RequestOutcome {
    /// It completed; milliseconds per token, if there were several.
    Done(Option<f64>),
    /// The replica lost it.
    Lost,
    /// No evidence for or against the replica.
    Neither,
}

/// Routing decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoutingDecision {
    /// To this head; the request counts as running there.
    To(String),
    /// All slots are taken.
    Busy,
    /// No replica serves.
    Nowhere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CircuitBreaker {
    Closed,
    /// Open until then.
    Open(Instant),
    /// Half-open: one probe request is let through.
    HalfOpen,
}

#[derive(Debug)]
struct ReplicaState {
    running: u32,
    /// Number of other clients' requests there, from its last two reports: a report that crosses the end of one of this
    /// gateway's requests counts one too many.
    others: [u32; 2],
    /// Time of the latest of them.
    heard: Option<Instant>,
    failures: u32,
    breaker: CircuitBreaker,
    out: Duration,
    /// Reports from before this time are ignored.
    failed_at: Option<Instant>,
    token_ms: f64,
    samples: u32,
    /// When the latest sample arrived.
    sampled: Option<Instant>,
}

impl Default for ReplicaState {
    fn default() -> Self {
        Self {
            running: 0,
            others: [0; 2],
            heard: None,
            failures: 0,
            breaker: CircuitBreaker::Closed,
            out: OUT,
            failed_at: None,
            token_ms: 0.0,
            samples: 0,
            sampled: None,
        }
    }
}

/// Per-replica state in addition to the reports.
#[derive(Debug, Default)]
pub struct Router {
    heads: BTreeMap<String, ReplicaState>,
    /// The head that last had a prompt beginning; the oldest entries are dropped.
    prefixes: BTreeMap<u64, String>,
    ages: VecDeque<u64>,
}

impl Router {
    /// Chooses a head for a prompt whose beginning has this hash.
    pub fn choose(&mut self, replicas: &[Replica], prefix: u64, now: Instant) -> RoutingDecision {
        let serving: Vec<&Replica> = replicas.iter().filter(|replica| self.takes(replica)).collect();
        if serving.is_empty() {
            return RoutingDecision::Nowhere;
        }
        let mut good: Vec<&Replica> =
            serving.iter().copied().filter(|replica| self.is_in(&replica.head, now)).collect();
        if good.is_empty() {
            // Any replica is better than none: consider all that serve.
            good = serving;
        }
        // A replica with a longer time per token gets fewer requests.
        let weighed = |load: u32, replica: &Replica| f64::from(load + 1) * self.slowness(&replica.head, &good, now);
        let of = |replica: &Replica| weighed(self.load(replica), replica);
        let has_place = |replica: &&Replica| self.load(replica) < replica.slots;
        let least = good.iter().copied().filter(has_place).min_by(|one, two| of(one).total_cmp(&of(two)));
        let Some(least) = least else { return RoutingDecision::Busy };
        let known = self.prefixes.get(&prefix);
        let near = good.iter().copied().filter(has_place).find(|replica| Some(&replica.head) == known);
        let margin = (least.slots / 4).max(1);
        let near = near.filter(|near| of(near) <= weighed(self.load(least) + margin, least));
        let head = near.unwrap_or(least).head.clone();
        let standing = self.heads.entry(head.clone()).or_default();
        standing.running += 1;
        if matches!(standing.breaker, CircuitBreaker::Open(until) if now >= until) {
            standing.breaker = CircuitBreaker::HalfOpen;
        }
        self.remember(prefix, &head);
        RoutingDecision::To(head)
    }

    /// Processes new reports of heads: determines the number of other clients' requests.
    pub fn learn(&mut self, replicas: &[Replica]) {
        for replica in replicas.iter().filter(|replica| replica.is_serving) {
            let standing = self.heads.entry(replica.head.clone()).or_default();
            if standing.heard.is_none_or(|heard| replica.at > heard) {
                standing.heard = Some(replica.at);
                standing.others = [replica.requests.saturating_sub(standing.running), standing.others[0]];
            }
        }
    }

    /// Slots of all replicas that take requests, and those in use.
    pub fn places(&self, replicas: &[Replica]) -> (u32, u32) {
        let serving = replicas.iter().filter(|replica| self.takes(replica));
        serving
            .fold((0, 0), |(all, taken), replica| (all + replica.slots, taken + self.load(replica).min(replica.slots)))
    }

    /// Records the end of a request on a head.
    pub fn ended(&mut self, head: &str, outcome: RequestOutcome, now: Instant) {
        let standing = self.heads.entry(head.into()).or_default();
        standing.running = standing.running.saturating_sub(1);
        match outcome {
            RequestOutcome::Neither if standing.breaker == CircuitBreaker::HalfOpen => {
                standing.breaker = CircuitBreaker::Open(now)
            }
            RequestOutcome::Neither => {}
            RequestOutcome::Lost => {
                standing.failures += 1;
                standing.failed_at = Some(now);
                // If its breaker is open and it was used as a last resort, its time is not extended.
                let is_judged = match standing.breaker {
                    CircuitBreaker::Closed => standing.failures >= FAILURES_MAX,
                    CircuitBreaker::Open(_) => false,
                    CircuitBreaker::HalfOpen => true,
                };
                if is_judged {
                    take_out(standing, now);
                }
            }
            RequestOutcome::Done(token_ms) => {
                standing.failures = 0;
                if let Some(token_ms) = token_ms {
                    // A probe is judged by itself alone.
                    let share = if standing.samples == 0 || standing.breaker == CircuitBreaker::HalfOpen {
                        1.0
                    } else {
                        LATEST
                    };
                    standing.token_ms += share * (token_ms - standing.token_ms);
                    standing.samples = standing.samples.saturating_add(1);
                    standing.sampled = Some(now);
                }
                let is_slow = self.is_slow(head);
                let standing = self.heads.entry(head.into()).or_default();
                match (standing.breaker, is_slow) {
                    (CircuitBreaker::Closed | CircuitBreaker::HalfOpen, true) => take_out(standing, now),
                    (CircuitBreaker::HalfOpen, false) => {
                        (standing.breaker, standing.out) = (CircuitBreaker::Closed, OUT)
                    }
                    _ => {}
                }
            }
        }
    }

    /// Numbers of known heads and of remembered beginnings of prompts.
    pub fn sizes(&self) -> [usize; 2] {
        [self.heads.len(), self.prefixes.len().max(self.ages.len())]
    }

    /// Whether a head's circuit breaker is open, for display.
    pub fn is_out(&self, head: &str) -> bool {
        self.heads.get(head).is_some_and(|standing| standing.breaker != CircuitBreaker::Closed)
    }

    /// Number of requests of this gateway on a head.
    pub fn running(&self, head: &str) -> u32 {
        self.heads.get(head).map_or(0, |standing| standing.running)
    }

    /// Whether a replica takes requests, according to its reports since its last failure.
    fn takes(&self, replica: &Replica) -> bool {
        let failed = self.heads.get(&replica.head).and_then(|standing| standing.failed_at);
        replica.is_serving && failed.is_none_or(|failed| replica.at > failed)
    }

    fn is_in(&self, head: &str, now: Instant) -> bool {
        self.heads.get(head).is_none_or(|standing| match standing.breaker {
            CircuitBreaker::Closed => true,
            CircuitBreaker::Open(until) => now >= until,
            CircuitBreaker::HalfOpen => false,
        })
    }

    /// Requests of this gateway and of others on a replica.
    fn load(&self, replica: &Replica) -> u32 {
        self.heads
            .get(&replica.head)
            .map_or(0, |standing| standing.running + standing.others[0].min(standing.others[1]))
    }

    /// Time per token relative to the fastest of these replicas; 1 if unknown or not clearly slower.
    fn slowness(&self, head: &str, among: &[&Replica], now: Instant) -> f64 {
        // While its circuit breaker is open, a replica is judged by its probe; and one without requests for a while
        // may have recovered.
        let known = |head: &str| {
            self.heads
                .get(head)
                .filter(|one| {
                    one.samples >= SAMPLES_MIN
                        && one.breaker == CircuitBreaker::Closed
                        && one.sampled.is_some_and(|sampled| now < sampled + SAMPLES_AGE)
                })
                .map(|one| one.token_ms)
        };
        let fastest = among.iter().filter_map(|replica| known(&replica.head)).min_by(f64::total_cmp);
        let times = known(head).zip(fastest).map_or(1.0, |(own, fastest)| own / fastest.max(f64::MIN_POSITIVE));
        if times > CLEARLY { times } else { 1.0 }
    }

    fn is_slow(&self, head: &str) -> bool {
        let Some(own) = self.heads.get(head).filter(|own| own.samples >= SAMPLES_MIN) else { return false };
        let others = self.heads.iter().filter(|(other, standing)| *other != head && standing.samples >= SAMPLES_MIN);
        let mut others: Vec<f64> = others.map(|(_, standing)| standing.token_ms).collect();
        others.sort_by(f64::total_cmp);
        let median = others.get(others.len() / 2);
        median.is_some_and(|median| own.token_ms > SLOW_MS_MIN && own.token_ms > SLOW * median)
    }

    fn remember(&mut self, prefix: u64, head: &str) {
        if self.prefixes.insert(prefix, head.into()).is_none() {
            self.ages.push_back(prefix);
        }
        if self.ages.len() > PREFIXES_MAX
            && let Some(oldest) = self.ages.pop_front()
        {
            self.prefixes.remove(&oldest);
        }
    }
}

fn take_out(standing: &mut ReplicaState, now: Instant) {
    standing.breaker = CircuitBreaker::Open(now + standing.out);
    standing.out = (standing.out * 2).min(OUT_MAX);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(head: &str, requests: u32, at: Instant) -> Replica {
        Replica { head: head.into(), name: head.into(), slots: 4, requests, at, is_serving: true }
    }

    /// A router that has received two reports of these replicas.
    fn after(replicas: &[Replica]) -> Router {
        let mut router = Router::default();
        router.learn(
            &replicas
                .iter()
                .map(|replica| Replica { at: replica.at - Duration::from_millis(1), ..replica.clone() })
                .collect::<Vec<_>>(),
        );
        router.learn(replicas);
        router
    }

    fn to(way: RoutingDecision) -> String {
        match way {
            RoutingDecision::To(head) => head,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn prefix_affinity_yields_to_much_lower_load() {
        let now = Instant::now();
        let replicas = [replica("a", 1, now), replica("b", 0, now)];
        let mut router = after(&replicas);
        assert_eq!(to(router.choose(&replicas, 1, now)), "b");
        assert_eq!(
            to(router.choose(&replicas, 1, now)),
            "b",
            "it has the prompt cached, and one more request is not much"
        );
        assert_eq!(to(router.choose(&replicas, 2, now)), "a", "b runs two now");
        router.ended("a", RequestOutcome::Done(None), now);
        assert_eq!(to(router.choose(&replicas, 1, now)), "b");
        assert_eq!(to(router.choose(&replicas, 1, now)), "a", "three against one are much more");
    }

    #[test]
    fn full_replicas_are_busy_and_no_replica_is_nowhere() {
        let now = Instant::now();
        let replicas = [replica("a", 3, now), replica("b", 9, now)];
        let mut router = after(&replicas);
        assert_eq!(router.choose(&[], 1, now), RoutingDecision::Nowhere);
        assert_eq!(router.places(&replicas), (8, 7));
        assert_eq!(to(router.choose(&replicas, 1, now)), "a");
        assert_eq!(router.choose(&replicas, 1, now), RoutingDecision::Busy);
        // Its report still counts the request that has just ended.
        router.ended("a", RequestOutcome::Done(None), now);
        router.learn(&[Replica { at: now + Duration::from_millis(1), ..replica("a", 4, now) }]);
        assert_eq!(to(router.choose(&replicas, 1, now)), "a");
        let away = Replica { is_serving: false, ..replica("a", 0, now) };
        assert_eq!(router.choose(&[away], 1, now), RoutingDecision::Nowhere);
    }

    #[test]
    fn slower_replica_gets_fewer_requests_but_no_slot_is_idle() {
        let now = Instant::now();
        let replicas = [replica("a", 0, now), replica("b", 0, now)];
        let mut router = after(&replicas);
        for (head, token_ms) in [("a", 10.0), ("b", 20.0)] {
            for _ in 0..SAMPLES_MIN {
                router.heads.entry(head.into()).or_default().running += 1;
                router.ended(head, RequestOutcome::Done(Some(token_ms)), now);
            }
        }
        let heads: Vec<String> = (2..8).map(|prefix| to(router.choose(&replicas, prefix, now))).collect();
        assert_eq!(heads.iter().filter(|head| *head == "a").count(), 4, "{heads:?}");
        assert!((8..10).all(|prefix| to(router.choose(&replicas, prefix, now)) == "b"));
        assert_eq!(router.choose(&replicas, 10, now), RoutingDecision::Busy);
    }

    #[test]
    fn slow_replica_counts_as_recovered_after_an_idle_minute() {
        let now = Instant::now();
        let mut router = Router::default();
        for _ in 0..SAMPLES_MIN {
            router.ended("a", RequestOutcome::Done(Some(10.0)), now);
            router.ended("b", RequestOutcome::Done(Some(20.0)), now);
        }
        let later = now + SAMPLES_AGE;
        let replicas = [replica("a", 0, later), replica("b", 0, later)];
        let among: Vec<&Replica> = replicas.iter().collect();
        assert!(router.slowness("b", &among, now) > CLEARLY);
        assert!(router.slowness("b", &among, later) < CLEARLY);
    }

    #[test]
    fn breaker_stays_open_until_a_probe_succeeds() {
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let replicas = |now| [replica("a", 0, now), replica("b", 2, now)];
        let mut router = after(&replicas(begin));
        for second in 0..3 {
            assert_eq!(to(router.choose(&replicas(at(second)), 1, at(second))), "a");
            router.ended("a", RequestOutcome::Lost, at(second));
            let stale = [replica("a", 0, at(second))];
            assert_eq!(router.choose(&stale, 1, at(second)), RoutingDecision::Nowhere, "no report since the failure");
        }
        assert!(router.is_out("a"));
        assert_eq!(to(router.choose(&replicas(at(4)), 1, at(4))), "b");
        assert_eq!(to(router.choose(&replicas(at(8)), 9, at(8))), "a", "a probe");
        assert_eq!(to(router.choose(&replicas(at(8)), 9, at(8))), "b", "only one probe");
        (0..2).for_each(|_| router.ended("b", RequestOutcome::Done(None), at(8)));
        router.ended("a", RequestOutcome::Lost, at(8));
        assert_eq!(to(router.choose(&replicas(at(14)), 8, at(14))), "b", "open twice as long now");
        assert_eq!(to(router.choose(&replicas(at(19)), 7, at(19))), "a");
        router.ended("a", RequestOutcome::Done(None), at(19));
        assert!(!router.is_out("a"));
    }

    #[test]
    fn last_replica_is_used_although_its_breaker_is_open() {
        let begin = Instant::now();
        let mut router = Router::default();
        (0..3).for_each(|_| router.ended("a", RequestOutcome::Lost, begin));
        let later = begin + Duration::from_millis(1);
        assert_eq!(to(router.choose(&[replica("a", 0, later)], 1, later)), "a");
    }

    #[test]
    fn loss_on_last_resort_does_not_prolong_open_breaker() {
        let begin = Instant::now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let mut router = Router::default();
        (0..3).for_each(|_| router.ended("a", RequestOutcome::Lost, begin));
        for ms in 1..4 {
            assert_eq!(to(router.choose(&[replica("a", 0, at(ms))], 1, at(ms))), "a");
            router.ended("a", RequestOutcome::Lost, at(ms));
        }
        let later = begin + OUT;
        let replicas = [replica("a", 0, later), replica("b", 1, later)];
        router.learn(&replicas);
        router.learn(&[replica("a", 0, later), Replica { at: later + OUT, ..replica("b", 1, later) }]);
        assert_eq!(to(router.choose(&replicas, 2, later)), "a", "its breaker is no longer open");
    }

    #[test]
    fn breaker_opens_for_slow_replica_until_it_is_fast_again() {
        let now = Instant::now();
        let mut router = Router::default();
        for _ in 0..6 {
            router.ended("a", RequestOutcome::Done(Some(10.0)), now);
            router.ended("b", RequestOutcome::Done(Some(40.0)), now);
        }
        assert!(router.is_out("b") && !router.is_out("a"));
        let later = now + OUT;
        let replicas = [replica("a", 1, later), replica("b", 0, later)];
        assert_eq!(to(router.choose(&replicas[..1], 2, later)), "a");
        assert_eq!(to(router.choose(&replicas, 1, later)), "b", "a probe");
        router.ended("b", RequestOutcome::Done(Some(12.0)), later);
        assert!(!router.is_out("b"));
    }
}

//! Lanes on the `sim` device, stepped together; and comparisons of events made by hand.

mod drafting;
mod figures;
mod recovered;
mod stepping;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::*;
use crate::config::Config;
use crate::engine::{Command, Setup};
use crate::event::{Event, Fanout, Gate, LaneId};
use crate::model;
use crate::recovery::neighbours::Neighbours;
use crate::session::Session;

/// Longer than anything here takes, even on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) fn sim() -> Config {
    let mut config = Config::default();
    config.model.device = crate::config::DeviceSetting::Sim;
    config.replay.max_output_tokens = 4;
    config
}

fn session(turns: usize) -> Arc<Session> {
    let mut session = crate::session::open("steady").unwrap();
    session.requests.truncate(turns);
    Arc::new(session)
}

fn lane(name: &str, config: Config, session: &Arc<Session>) -> LaneSetup {
    let for_load = config.clone();
    let load = Box::new(move || model::load(&for_load));
    let setup = Setup {
        neighbours: Neighbours::open(&config.recovery),
        config,
        session: Arc::clone(session),
        load,
        sink: Box::new(Fanout::new()),
    };
    LaneSetup { name: name.to_owned(), setup }
}

/// Lanes whose news can be waited for.
struct Bench {
    lockstep: Lockstep,
    news: Receiver<News>,
    seen: Vec<News>,
    comparison: Comparison,
}

impl Bench {
    fn start(lanes: Vec<LaneSetup>, first: usize) -> Bench {
        let (sender, news) = channel();
        let lockstep = Lockstep::start(lanes, first, move |told| drop(sender.send(told))).unwrap();
        let comparison = Comparison::new(lockstep.names().to_vec());
        Bench { lockstep, news, seen: Vec::new(), comparison }
    }

    fn alike(lanes: usize, turns: usize) -> Bench {
        let session = session(turns);
        let names = ["dense", "b", "c", "d"];
        Bench::start(names[..lanes].iter().map(|name| lane(name, sim(), &session)).collect(), 0)
    }

    /// Takes in what is told until `done` is.
    fn until(&mut self, mut done: impl FnMut(&News) -> bool) {
        let end = Instant::now() + PATIENCE;
        loop {
            let told = self.news.recv_timeout(end.saturating_duration_since(Instant::now()));
            let told = told.unwrap_or_else(|error| panic!("{error}, the last being {:?}", self.seen.last()));
            self.comparison.apply(&told);
            let over = done(&told);
            self.seen.push(told);
            if over {
                return;
            }
        }
    }

    fn until_gate(&mut self, wanted: Gate) {
        self.until(|told| *told == News::Gate(wanted));
    }

    /// Has the lanes obey and waits until they are under way and then held again.
    fn obey(&mut self, command: Command, then: Gate) {
        assert!(self.lockstep.send(command));
        self.until_gate(Gate::Running);
        self.until_gate(then);
    }

    fn ended(&self) -> Vec<usize> {
        let ledgers = (0..self.comparison.names().len()).map(|lane| self.comparison.ledger(lane).unwrap());
        ledgers.map(|ledger| ledger.requests().filter(|request| request.took.is_some()).count()).collect()
    }

    fn orders(&self) -> Vec<Vec<usize>> {
        let order = |told: &News| match told {
            News::Round { order, .. } => Some(order.clone()),
            _ => None,
        };
        self.seen.iter().filter_map(order).collect()
    }

    /// Every event, with its lane.
    fn events(&self) -> impl Iterator<Item = (usize, &Event)> {
        self.seen.iter().filter_map(|told| match told {
            News::Event { lane, event } => Some((*lane, event)),
            _ => None,
        })
    }

    fn finish(mut self) -> Comparison {
        self.lockstep.send(Command::Shutdown);
        self.until(|told| *told == News::Over);
        self.lockstep.finish();
        self.comparison
    }
}

const A: LaneId = LaneId(0);

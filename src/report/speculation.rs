//! Speculative decoding of a run as tables: what drafting gave and cost, what depths cost, how drafts did by kind of text, and what other
//! controllers would have come to.

use std::borrow::Cow;

use super::{Align, Table, UNMEASURED, or_dash, seconds, thousands};
use crate::decode::economics::Position;
use crate::decode::what_if::{Policy, Replayed};
use crate::ledger::{
    AuditVerdict, DenseSource, KindAcceptance, Ledger, ReplyKind, RequestFacts, SpeculationAccount, WhatIf,
};

/// A table with its title, and what its columns mean.
pub(super) struct Titled {
    pub(super) title: &'static str,
    pub(super) table: Table,
    pub(super) note: Cow<'static, str>,
}

/// The tables of a run; none where nothing drafted.
pub(super) fn tables(ledger: &Ledger) -> Vec<Titled> {
    let accounts: Vec<(&RequestFacts, SpeculationAccount)> = ledger
        .requests()
        .filter_map(|request| Some((request, ledger.speculation_account(request.id)?)))
        .collect();
    if accounts.is_empty() {
        return Vec::new();
    }
    let drafting = Titled {
        title: "Drafting by request",
        table: accounts_table(ledger, &accounts),
        note: "`cost` is what a cycle takes in dense steps, and the tokens per cycle at which it breaks even; `accepted` is of the tokens put to the test. \
               `i.i.d.` are the tokens per cycle that drafts of these lengths let expect if all drafted tokens were accepted alike. `share` is the part \
               of the reply that cycles gave; `parked` are ordinary steps outside of them. `predicted` and `measured` are of the tokens after the first; \
               `measured` is against a request that decoded without a drafter. Where an audit failed or the counters cannot be, no cost is shown."
            .into(),
    };
    [
        Some(drafting),
        time_table(ledger, &accounts),
        depth_table(ledger, &accounts),
        kind_table(&accounts),
        what_if_table(ledger),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The same as text, with an empty line after each; empty where nothing drafted.
pub fn speculation_text(ledger: &Ledger) -> String {
    tables(ledger).into_iter().map(|Titled { title, table, .. }| format!("{title}\n{table}\n")).collect()
}

fn place(ledger: &Ledger, request: &RequestFacts) -> String {
    match ledger.lanes().count() > 1 {
        true => format!("{}{}", request.lane.label(), request.turn),
        false => request.turn.to_string(),
    }
}

fn figure(value: Option<f64>) -> String {
    or_dash(value, |value| format!("{value:.2}"))
}

fn percent(value: Option<f64>) -> String {
    or_dash(value, |value| format!("{:.0} %", value * 100.0))
}

fn times(value: Option<f64>) -> String {
    or_dash(value, |value| format!("{value:.2}x"))
}

fn accounts_table(ledger: &Ledger, accounts: &[(&RequestFacts, SpeculationAccount)]) -> Table {
    let mut table = Table::new(&[
        ("turn", Align::Right),
        ("drafter", Align::Left),
        ("depth", Align::Right),
        ("cycles", Align::Right),
        ("zero", Align::Right),
        ("drafted", Align::Right),
        ("tested", Align::Right),
        ("accepted", Align::Right),
        ("tok/cycle", Align::Right),
        ("i.i.d.", Align::Right),
        ("cost", Align::Right),
        ("pays", Align::Left),
        ("share", Align::Right),
        ("parked", Align::Right),
        ("predicted", Align::Right),
        ("measured", Align::Right),
        ("priming", Align::Right),
        ("audit", Align::Left),
        ("counters", Align::Left),
    ]);
    for (request, account) in accounts {
        let counters = &account.counters;
        let depth = account.depth_max.zip(account.controller).map(|(depth, controller)| match controller {
            crate::config::ControllerKind::Fixed => depth.to_string(),
            crate::config::ControllerKind::Adaptive => format!("≤{depth}"),
        });
        let audit = match &account.audit {
            AuditVerdict::Off => UNMEASURED.to_owned(),
            AuditVerdict::Passed { cycles, how } => format!("{} {}", thousands(*cycles), how.word()),
            AuditVerdict::Failed(failure) => {
                format!("FAILED at cycle {}: {}", failure.cycle, failure.problem)
            }
        };
        let drafter = match (account.drafter, &account.ended) {
            (Some(drafter), None) => drafter.word().to_owned(),
            (Some(drafter), Some(ended)) => format!("{}, ended: {ended}", drafter.word()),
            (None, ended) => format!("none: {}", ended.as_deref().unwrap_or(UNMEASURED)),
        };
        let speed_up = |told: Result<Option<f64>, _>| told.map_or_else(|_| "withheld".to_owned(), times);
        let (predicted, measured) = (speed_up(account.speed_up()), speed_up(account.measured_speed_up()));
        let pays = account.pays().map(|pays| if pays { "yes" } else { "no" });
        let problem = account.problem.as_ref().map(|problem| format!("CANNOT BE: {problem}"));
        table.row([
            place(ledger, request),
            drafter,
            or_dash(depth, |depth| depth),
            thousands(counters.cycles),
            thousands(counters.zero_cycles),
            thousands(counters.drafted),
            thousands(counters.tested),
            percent(counters.accepted_of_tested()),
            figure(account.tokens_per_cycle()),
            figure(account.independent_tokens_per_cycle),
            figure(account.cost_ratio()),
            or_dash(pays, str::to_owned),
            figure(account.share()),
            or_dash(account.parked_steps, thousands),
            predicted,
            measured,
            or_dash(account.priming, |time| seconds(time.seconds())),
            audit,
            or_dash(problem, |problem| problem),
        ]);
    }
    table
}

/// Where the time went; `None` where forwards were shared in all requests.
fn time_table(ledger: &Ledger, accounts: &[(&RequestFacts, SpeculationAccount)]) -> Option<Titled> {
    let mut table = Table::new(&[
        ("turn", Align::Right),
        ("draft", Align::Right),
        ("verify", Align::Right),
        ("sample", Align::Right),
        ("rollback", Align::Right),
        ("commit", Align::Right),
        ("a cycle", Align::Right),
        ("a dense step", Align::Right),
        ("measured on", Align::Left),
        ("experts", Align::Right),
    ]);
    let mut any = false;
    for (request, account) in accounts.iter().filter(|(_, account)| account.counters.cycles > 0) {
        any |= account.time.is_some();
        let parts = account.time.map(|time| time.parts());
        let part = |index: usize| or_dash(parts, |parts| seconds(parts[index].1.seconds()));
        let from = account.dense().map(|dense| match dense.from {
            DenseSource::Own { steps } => format!("{} of its own steps", thousands(steps)),
            DenseSource::Request(id) => format!("request {}", id.0),
            DenseSource::StepsOf(id) => format!("ordinary steps of request {}, which drafted", id.0),
            DenseSource::Curve => "the verify curve".to_owned(),
        });
        let experts = account.experts.map(|of| format!("{:.1} of {}", of.touched, thousands(of.experts)));
        table.row([
            place(ledger, request),
            part(0),
            part(1),
            part(2),
            part(3),
            part(4),
            or_dash(account.ms_per_cycle(), |ms| seconds(ms / 1e3)),
            or_dash(account.dense(), |dense| seconds(dense.ms / 1e3)),
            or_dash(from, |from| from),
            or_dash(experts, |experts| experts),
        ]);
    }
    any.then_some(Titled {
        title: "Time of the cycles",
        table,
        note: "Where other sequences shared a forward its time is no measurement of one of them, and stands as `–`.".into(),
    })
}

/// What depths cost and give, of one request: costs grow with the context, so requests do not add up.
fn depth_table(ledger: &Ledger, accounts: &[(&RequestFacts, SpeculationAccount)]) -> Option<Titled> {
    let known = accounts.iter().filter_map(|(request, account)| {
        let curve = request.speculation.as_ref().is_some_and(|told| told.curve.is_some());
        Some(((curve, account.counters.drafted), request, request.depth_costs(account)?))
    });
    let ((curve, _), request, costs) = known.max_by_key(|(rank, ..)| *rank)?;
    let mut table = Table::new(&[
        ("depth", Align::Right),
        ("cycles", Align::Right),
        ("cost", Align::Right),
        ("gives", Align::Right),
        ("per dense step", Align::Right),
        ("", Align::Left),
    ]);
    for depth in &costs.depths {
        let rate = depth.gives.map(|gives| gives / depth.cost);
        table.row([
            depth.depth.to_string(),
            thousands(depth.cycles),
            format!("{}{:.2}", if depth.measured { "" } else { "≈" }, depth.cost),
            figure(depth.gives),
            figure(rate),
            if depth.depth == costs.best { "◂ predicted optimum".to_owned() } else { String::new() },
        ]);
    }
    Some(Titled {
        title: "Cost of a cycle by depth, in dense steps",
        table,
        note: format!(
            "Of turn {}, {}. `gives` are the tokens that acceptance at each position lets expect; `≈` rests on the verify curve, or on a line between \
             depths that are known.",
            place(ledger, request),
            if curve { "the one that drafted most of those with a verify curve" } else { "the one that drafted most" },
        )
        .into(),
    })
}

fn kind_table(accounts: &[(&RequestFacts, SpeculationAccount)]) -> Option<Titled> {
    let mut table = Table::new(&[
        ("", Align::Left),
        ("tokens", Align::Right),
        ("tested", Align::Right),
        ("accepted", Align::Right),
        ("hazard", Align::Right),
    ]);
    let add = |sum: Position, more: Position| Position {
        tested: sum.tested.saturating_add(more.tested),
        accepted: sum.accepted.saturating_add(more.accepted),
    };
    let by_request: Vec<KindAcceptance> =
        accounts.iter().flat_map(|(request, _)| request.acceptance_by_kind()).collect();
    for kind in ReplyKind::ALL {
        let of: Vec<&KindAcceptance> = by_request.iter().filter(|told| told.kind == kind).collect();
        let drafts = of.iter().fold(Position::default(), |sum, told| add(sum, told.drafts));
        let tokens = of.iter().fold(0u64, |sum, told| sum.saturating_add(told.tokens));
        if tokens > 0 {
            let acceptance = percent(drafts.acceptance());
            table.row([
                kind.word().to_owned(),
                thousands(tokens),
                thousands(drafts.tested),
                acceptance,
                UNMEASURED.to_owned(),
            ]);
        }
    }
    let mut positions: Vec<Position> = Vec::new();
    for (_, account) in accounts {
        for (index, position) in account.counters.positions.iter().enumerate() {
            match positions.get_mut(index) {
                Some(sum) => *sum = add(*sum, *position),
                None => positions.push(*position),
            }
        }
    }
    for (index, position) in positions.iter().enumerate() {
        let name = format!("draft position {}", index + 1);
        table.row([
            name,
            UNMEASURED.to_owned(),
            thousands(position.tested),
            percent(position.acceptance()),
            percent(position.hazard()),
        ]);
    }
    (!by_request.is_empty() || !positions.is_empty()).then_some(Titled {
        title: "Acceptance by kind of text and by position",
        table,
        note: "A position is tested where all before it were accepted; its hazard is the risk that a draft which got there ends there.".into(),
    })
}

fn policy_word(policy: Policy) -> String {
    match policy {
        Policy::Recorded => "as recorded".to_owned(),
        Policy::Fixed(0) => "none".to_owned(),
        Policy::Fixed(depth) => format!("fixed {depth}"),
        Policy::Adaptive { depth_max } => format!("adaptive ≤{depth_max}"),
        Policy::Oracle => "oracle".to_owned(),
    }
}

fn what_if_table(ledger: &Ledger) -> Option<Titled> {
    const SHOWN: usize = 6;
    const TITLE: &str = "What if: the same replies with other controllers";
    let what_if = match ledger.what_if()? {
        Ok(what_if) => what_if,
        Err(failure) => {
            return Some(Titled {
                title: TITLE,
                table: Table::new(&[("controller", Align::Left)]),
                note: format!("Withheld: an audit failed at cycle {}.", failure.cycle).into(),
            });
        }
    };
    let left_out = what_if.failed.iter().filter_map(|(id, _)| ledger.request(*id));
    let left_out: Vec<String> = left_out.map(|request| place(ledger, request)).collect();
    let left_out = match left_out.is_empty() {
        true => String::new(),
        false => format!(" Left out, since an audit of it failed: turn {}.", left_out.join(", ")),
    };
    let shown = if what_if.requests.len() > 1 { what_if.requests.len().min(SHOWN) } else { 0 };
    let mut titles = vec![
        ("controller".to_owned(), Align::Left),
        ("cycles".to_owned(), Align::Right),
        ("tok/cycle".to_owned(), Align::Right),
        ("time".to_owned(), Align::Right),
        ("over dense".to_owned(), Align::Right),
        ("seen".to_owned(), Align::Right),
    ];
    let requests = what_if.requests.iter().take(shown).filter_map(|id| ledger.request(*id));
    titles.extend(requests.map(|request| (format!("turn {}", place(ledger, request)), Align::Right)));
    let columns: Vec<(&str, Align)> = titles.iter().map(|(title, align)| (title.as_str(), *align)).collect();
    let mut table = Table::new(&columns);
    for (policy, replayed) in &what_if.policies {
        let sum = WhatIf::sum(replayed);
        let time = format!("{}{}", if sum.measured { "" } else { "≈" }, seconds(sum.seconds));
        let mut cells = vec![
            policy_word(*policy),
            thousands(sum.cycles),
            figure(sum.tokens_per_cycle()),
            time,
            times(sum.speed_up()),
            percent(sum.exact_share()),
        ];
        cells.extend(replayed.iter().take(shown).map(|one: &Replayed| times(one.speed_up())));
        table.row(cells);
    }
    Some(Titled {
        title: TITLE,
        table,
        note: format!("On paper, with the run's own costs. `seen` is the part of the cycles whose outcome the run saw at their very place; the rest is inferred from the cycles that passed there or lie around it. The oracle knows what is accepted, and bounds them all. `≈` rests on the verify curve, or on costs between those that are known.{left_out}").into(),
    })
}

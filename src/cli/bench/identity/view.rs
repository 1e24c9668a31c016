//! What was measured, as tables and as JSON.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Serialize;

use crate::device::ExecutorFacts;
use crate::device::identity::{Comparison, Drafts, Finding, Measured, Parting, Plan, TextRoute, Verdict};
use crate::event::Identity;
use crate::report::{Align, Table, UNMEASURED, counted, or_dash, thousands};

/// Columns a token's text takes at most.
const TOKEN_WIDTH: usize = 7;

/// The published figures of the same two findings.
const PUBLISHED: &str = "\
For comparison, published for oMLX on an Apple M4 Max: 13 runs of 68,034 tokens
by three routings of attention gave 3 sets of logits, up to 0.4 apart, and 1
text; under speculation a text parted from dense decoding at character 235 and
two such runs at 256. Evidence level 6, correctness result: Oliver Yu, Reusable
State Dynamics in Interactive LLM Inference (EXP-001),
https://github.com/tc3oliver/llm-inference-systems, CC BY 4.0.
";

/// What was measured on.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Subject<'a> {
    pub(super) model: &'a str,
    pub(super) device: &'static str,
    pub(super) kernel: &'a str,
    pub(super) precision: &'static str,
    pub(super) identity: Identity,
    /// The session whose prompt it is; null where the tokens are random.
    pub(super) session: Option<&'a str>,
    pub(super) prompt_tokens: usize,
    pub(super) decoded_tokens: usize,
    pub(super) generated_tokens: usize,
    pub(super) chunk_tokens: usize,
    pub(super) page_tokens: usize,
}

impl<'a> Subject<'a> {
    pub(super) fn new(facts: &'a ExecutorFacts, plan: &Plan<'_>, session: Option<&'a str>) -> Subject<'a> {
        Subject {
            model: &facts.model,
            device: facts.device,
            kernel: &facts.kernel,
            precision: facts.precision,
            identity: facts.identity,
            session,
            prompt_tokens: plan.prompt(),
            decoded_tokens: plan.decoded,
            generated_tokens: plan.generated,
            chunk_tokens: plan.chunk_tokens,
            page_tokens: facts.page_tokens,
        }
    }

    fn reference(&self) -> String {
        format!(
            "the prompt in chunks of {}, then one token a forward, alone",
            thousands(self.chunk_tokens as u64)
        )
    }
}

/// All of it, ready to be shown.
pub(super) struct View<'a> {
    pub(super) subject: Subject<'a>,
    pub(super) measured: &'a Measured,
    /// A token's text.
    pub(super) spell: &'a dyn Fn(u32) -> String,
}

/// What `--json` prints. Null is what was not measured.
#[derive(Serialize)]
pub(super) struct Json<'a> {
    #[serde(flatten)]
    subject: &'a Subject<'a>,
    reference: String,
    logit_deviation: f64,
    tolerance: Option<f64>,
    compared_positions: usize,
    routes: Vec<RouteJson>,
    texts: Vec<TextJson>,
    distinct_logits: usize,
    distinct_texts: Option<usize>,
    promise_kept: bool,
    verdict: String,
}

#[derive(Serialize)]
struct RouteJson {
    kind: &'static str,
    route: String,
    positions: Option<usize>,
    largest_difference: Option<f64>,
    mean_difference: Option<f64>,
    top1_same: Option<usize>,
    top1_share: Option<f64>,
    flip_margin_smallest: Option<f64>,
    flip_margin_largest: Option<f64>,
    not_finite: Option<usize>,
    logits_same: Option<bool>,
    state_same: Option<bool>,
    verdict: Option<Verdict>,
    problem: Option<String>,
}

#[derive(Serialize)]
struct TextJson {
    finding: Finding,
    route: String,
    against: &'static str,
    same: Option<bool>,
    first_difference: Option<usize>,
    margin: Option<f64>,
    expected_token: Option<u32>,
    expected_text: Option<String>,
    token: Option<u32>,
    text: Option<String>,
    drafts: Option<Drafts>,
    problem: Option<String>,
}

impl View<'_> {
    /// What `--json` prints.
    pub(super) fn json(&self) -> Json<'_> {
        let Measured { deviation, tolerance, positions, distinct_logits, distinct_texts, .. } =
            *self.measured;
        Json {
            subject: &self.subject,
            reference: self.subject.reference(),
            logit_deviation: deviation,
            tolerance,
            compared_positions: positions,
            routes: self.measured.routes.iter().map(|run| self.route_json(run)).collect(),
            texts: self.measured.texts.iter().map(|run| self.text_json(run)).collect(),
            distinct_logits,
            distinct_texts,
            promise_kept: self.measured.promise_kept(),
            verdict: self.verdict(),
        }
    }

    fn route_json(&self, run: &crate::device::identity::RouteRun) -> RouteJson {
        let got = run.outcome.as_ref().ok();
        RouteJson {
            kind: run.route.kind(),
            route: run.route.label(),
            positions: got.map(|c| c.positions),
            largest_difference: got.map(|c| c.largest),
            mean_difference: got.map(|c| c.mean),
            top1_same: got.map(|c| c.positions - c.flips),
            top1_share: got.and_then(top1_share),
            flip_margin_smallest: got.and_then(|c| Some(c.flip_margins?.0)),
            flip_margin_largest: got.and_then(|c| Some(c.flip_margins?.1)),
            not_finite: got.map(|c| c.not_finite),
            logits_same: got.map(|c| c.same_bits),
            state_same: got.map(|c| c.state_same),
            verdict: got.map(|c| self.measured.verdict(c)),
            problem: run.outcome.as_ref().err().cloned(),
        }
    }

    fn text_json(&self, run: &crate::device::identity::TextRun) -> TextJson {
        let parting = run.outcome.as_ref().ok().copied().flatten();
        TextJson {
            finding: run.route.finding(),
            route: run.route.label(),
            against: match run.route {
                TextRoute::SpeculativeAgain(_) => "the first speculative run",
                TextRoute::Dense(_) | TextRoute::Speculative(_) => "dense decoding",
            },
            same: run.outcome.as_ref().ok().map(Option::is_none),
            first_difference: parting.map(|p| p.index),
            margin: parting.map(|p| p.margin),
            expected_token: parting.map(|p| p.expected),
            expected_text: parting.map(|p| (self.spell)(p.expected)),
            token: parting.map(|p| p.token),
            text: parting.map(|p| (self.spell)(p.token)),
            drafts: run.drafts,
            problem: run.outcome.as_ref().err().cloned(),
        }
    }

    /// Both tables, what they are of, and what they amount to.
    pub(super) fn text(&self) -> String {
        let Subject { model, device, kernel, precision, identity, session, page_tokens, .. } = &self.subject;
        let count = |n: usize| thousands(n as u64);
        let tokens = self.subject.prompt_tokens + self.subject.decoded_tokens;
        let of =
            session.map_or_else(|| "random tokens".to_owned(), |session| format!("tokens of `{session}`"));
        let mut text = format!(
            "{model} {precision} · {device} {kernel} · promises: {}\n\
             {} {of}: a prompt of {} and {} after it · blocks of {}\n\
             reference: {}\n",
            identity.word(),
            count(tokens),
            count(self.subject.prompt_tokens),
            count(self.subject.decoded_tokens),
            count(*page_tokens),
            self.subject.reference(),
        );
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "unit: {:.3} logits, the standard deviation of the reference's\n",
            self.measured.deviation
        );
        text += &self.route_table().to_string();
        if !self.measured.texts.is_empty() {
            let _ = write!(text, "\n{}", self.text_table());
        }
        text += "\n";
        for note in self.notes() {
            let _ = writeln!(text, "{note}");
        }
        if !self.measured.texts.is_empty() {
            let _ = write!(text, "\n{PUBLISHED}");
        }
        let _ = writeln!(text, "\n{}", self.verdict_lines().join("\n"));
        text
    }

    fn route_table(&self) -> Table {
        let mut table = Table::new(&[
            ("logits by route", Align::Left),
            ("largest", Align::Right),
            ("mean", Align::Right),
            ("top-1", Align::Right),
            ("flips at", Align::Right),
            ("state", Align::Left),
            ("verdict", Align::Left),
        ]);
        for run in &self.measured.routes {
            let label = run.route.label();
            let Ok(got) = &run.outcome else {
                table.row([
                    label.as_str(),
                    UNMEASURED,
                    UNMEASURED,
                    UNMEASURED,
                    UNMEASURED,
                    UNMEASURED,
                    UNMEASURED,
                ]);
                continue;
            };
            let largest = if got.not_finite > 0 { "NaN".to_owned() } else { difference(got.largest) };
            table.row([
                label,
                largest,
                difference(got.mean),
                format!("{}/{}", got.positions - got.flips, got.positions),
                or_dash(got.flip_margins, |(_, widest)| difference(widest)),
                if got.state_same { "same" } else { "other" }.to_owned(),
                self.verdict_word(got),
            ]);
        }
        table
    }

    fn verdict_word(&self, comparison: &Comparison) -> String {
        match (self.measured.verdict(comparison), self.measured.tolerance) {
            (Verdict::SameBits, _) => "same bits".to_owned(),
            (Verdict::Within, Some(bound)) => format!("within {bound}"),
            (Verdict::Within | Verdict::Differs, _) => "differs".to_owned(),
        }
    }

    fn text_table(&self) -> Table {
        let title = format!("greedy text of {}", counted(self.subject.generated_tokens as u64, "token"));
        let mut table = Table::new(&[
            (&title, Align::Left),
            ("text", Align::Left),
            ("from", Align::Right),
            ("margin", Align::Right),
            ("instead of → here", Align::Left),
        ]);
        let mut finding = None;
        for run in &self.measured.texts {
            if finding.replace(run.route.finding()) != Some(run.route.finding()) {
                table.row([run.route.finding().name()]);
            }
            let label = format!("  {}", run.route.label());
            match &run.outcome {
                Ok(None) => table.row([label.as_str(), "same"]),
                Ok(Some(parting)) => table.row([
                    label,
                    "other".to_owned(),
                    thousands(parting.index as u64),
                    difference(parting.margin),
                    self.tokens(parting),
                ]),
                Err(_) => table.row([label.as_str(), UNMEASURED]),
            }
        }
        table
    }

    fn tokens(&self, parting: &Parting) -> String {
        let quoted = |token: u32| {
            let text = (self.spell)(token);
            let mut shown: String = text.chars().take(TOKEN_WIDTH).collect();
            if shown.len() < text.len() {
                shown.pop();
                shown.push('…');
            }
            format!("`{shown}`")
        };
        format!("{} → {}", quoted(parting.expected), quoted(parting.token))
    }

    /// What the tables do not say themselves.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let flipped = self.measured.compared().any(|(_, comparison)| comparison.flips > 0);
        if flipped {
            notes.push(
                "flips at: the widest margin between the reference's two likeliest tokens at a\n\
                 position where the likeliest became another."
                    .to_owned(),
            );
        }
        let total = self.subject.prompt_tokens + self.subject.decoded_tokens;
        if self.measured.positions < total {
            notes.push(format!(
                "Logits are compared at {} of {} positions: all would take too much memory.",
                thousands(self.measured.positions as u64),
                thousands(total as u64)
            ));
        }
        let routes = self.measured.routes.iter().map(|run| (run.route.label(), run.outcome.as_ref().err()));
        let texts = self.measured.texts.iter().map(|run| (run.route.label(), run.outcome.as_ref().err()));
        // The same route can be missing in both tables.
        let mut told = BTreeSet::new();
        for (label, why) in routes.chain(texts).filter_map(|(label, why)| Some((label, why?))) {
            if told.insert(label.clone()) {
                notes.push(format!("Not measured, {label}:\n  {why}."));
            }
        }
        let logits = self.measured.compared().count() as u64;
        let texts = self.measured.texts.iter().filter(|run| run.outcome.is_ok()).count() as u64;
        let mut levels = format!(
            "Reference and {}: {} of logits",
            counted(logits, "route"),
            counted(self.measured.distinct_logits as u64, "set")
        );
        if let Some(distinct) = self.measured.distinct_texts {
            let (more, distinct) = (thousands(texts), counted(distinct as u64, "text"));
            let _ = write!(levels, ". Dense decoding and {more} more: {distinct}");
        }
        notes.push(levels + ".");
        notes
    }

    /// What the device promises and whether that was so.
    fn verdict(&self) -> String {
        self.verdict_lines().join(" ")
    }

    fn verdict_lines(&self) -> Vec<String> {
        let device = self.subject.device;
        let kept = if self.measured.promise_kept() { "kept" } else { "broken" };
        let worst = self.measured.compared().max_by(|a, b| a.1.largest.total_cmp(&b.1.largest));
        let differ =
            |differ: usize, of: usize, noun: &str| format!("{differ} of {}", counted(of as u64, noun));
        let routes = {
            let other = |c: &Comparison| self.measured.verdict(c) == Verdict::Differs;
            let count = self.measured.compared().filter(|(_, c)| other(c)).count();
            differ(count, self.measured.compared().count(), "route")
        };
        let texts = {
            let made = || self.measured.texts.iter().filter_map(|run| run.outcome.as_ref().ok());
            let count = differ(made().filter(|parting| parting.is_some()).count(), made().count(), "text");
            if made().count() == 0 { String::new() } else { format!(" and {count}") }
        };
        match self.measured.identity {
            Identity::Bitwise => vec![
                format!("{device} promises the same bits by every route: {kept}."),
                format!("{routes}{texts} differ."),
            ],
            Identity::Tolerance => {
                let bound = or_dash(self.measured.tolerance, |bound| bound.to_string());
                let worst = worst.map(|(route, c)| format!("{} ({})", difference(c.largest), route.label()));
                vec![
                    format!("{device} promises closeness and not the same bits: {kept}."),
                    format!("The largest difference is {}, the bound {bound};", worst.unwrap_or_default()),
                    match texts.as_str() {
                        "" => format!("{routes} are beyond it."),
                        texts => format!("{routes} are beyond it{texts} differ."),
                    },
                ]
            }
            Identity::Imported => vec![format!("{device} does not run here.")],
            Identity::Simulated => vec![
                format!(
                    "{device} computes nothing: logits are drawn from a digest of the context. This checks"
                ),
                format!("pages, slots and drafts, not numerics; they must be the same bits: {kept}."),
                format!("{routes}{texts} differ."),
            ],
        }
    }
}

/// A difference or a margin, in at most six columns.
fn difference(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        v if v < 0.095 => format!("{v:.1e}"),
        v if v < 1000.0 => format!("{v:.2}"),
        v => format!("{v:.0}"),
    }
}

fn top1_share(comparison: &Comparison) -> Option<f64> {
    let same = comparison.positions - comparison.flips;
    (comparison.positions > 0).then(|| same as f64 / comparison.positions as f64)
}

#[cfg(test)]
mod tests;

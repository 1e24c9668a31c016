//! Greedy text by different routes, compared until it parts.

use serde::Serialize;

use super::compare::Top;
use super::rig::{Obstacle, Rig, Track, Want};
use super::{Route, boundaries};
use crate::device::{DeviceError, LogitRows};

/// Drafted tokens a cycle.
const DRAFTS: [usize; 3] = [1, 3, 7];
/// The one that is run twice.
const REPEATED_DRAFT: usize = 3;
/// Every how manyth drafted token of the text is wrong.
const WRONG_EVERY: usize = 3;

/// What a row of texts shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// Dense decoding again, from the same prefill.
    Repetition,
    /// Dense decoding after a prompt that was computed in other forwards.
    RouteDependentNumerics,
    /// Dense decoding after a restored prefix.
    Restore,
    /// Drafts verified by exact match.
    GreedyDecodingUnderSpeculation,
}

impl Finding {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Finding::Repetition => "dense decoding repeated",
            Finding::RouteDependentNumerics => "route-dependent numerics",
            Finding::Restore => "decoding after a restore",
            Finding::GreedyDecodingUnderSpeculation => "greedy decoding under speculation",
        }
    }
}

/// How a text is made. It is compared with dense decoding after the reference's prefill unless it says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextRoute {
    /// Dense decoding after this prefill.
    Dense(Route),
    /// Verify cycles of this many drafted tokens, after the reference's prefill.
    Speculative(usize),
    /// The same a second time, compared with the first.
    SpeculativeAgain(usize),
}

impl TextRoute {
    /// What is different about it.
    pub fn label(self) -> String {
        match self {
            TextRoute::Dense(route) => route.label(),
            TextRoute::Speculative(1) => "1 token drafted a cycle".to_owned(),
            TextRoute::Speculative(drafted) => format!("{drafted} tokens drafted a cycle"),
            TextRoute::SpeculativeAgain(drafted) => format!("{drafted} drafted, run against run"),
        }
    }

    /// What it shows.
    pub fn finding(self) -> Finding {
        match self {
            TextRoute::Dense(Route::Again) => Finding::Repetition,
            TextRoute::Dense(Route::Restore(_)) => Finding::Restore,
            TextRoute::Dense(_) => Finding::RouteDependentNumerics,
            TextRoute::Speculative(_) | TextRoute::SpeculativeAgain(_) => {
                Finding::GreedyDecodingUnderSpeculation
            }
        }
    }
}

/// Where two texts part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parting {
    /// The first token that differs, from 0.
    pub index: usize,
    /// The margin between the two likeliest tokens there in the text it is compared with, in deviations of the logits.
    pub margin: f64,
    /// Its token there.
    pub expected: u32,
    /// This text's token.
    pub token: u32,
}

/// One text.
#[derive(Debug, Clone, PartialEq)]
pub struct TextRun {
    /// How it was made.
    pub route: TextRoute,
    /// Where it parts from the other text, `None` if nowhere; or why it was not made.
    pub outcome: Result<Option<Parting>, String>,
    /// Drafted tokens that were verified, and those of them accepted; `None` where nothing is drafted.
    pub drafts: Option<Drafts>,
}

/// What became of drafted tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Drafts {
    /// Verify cycles.
    pub cycles: usize,
    /// Tokens drafted.
    pub drafted: usize,
    /// Tokens accepted.
    pub accepted: usize,
}

/// A greedy text.
#[derive(Debug, Default)]
struct Text {
    tokens: Vec<u32>,
    /// Of each token over the one that came second.
    margins: Vec<f64>,
    drafts: Option<Drafts>,
}

impl Text {
    fn push(&mut self, top: Top) {
        self.tokens.push(top.token);
        self.margins.push(top.margin);
    }

    fn parting(&self, from: &Text, deviation: f64) -> Option<Parting> {
        let pairs = self.tokens.iter().zip(&from.tokens).zip(&from.margins).enumerate();
        let part = |(index, ((token, expected), margin)): (usize, ((&u32, &u32), &f64))| {
            let margin = margin / deviation;
            (token != expected).then_some(Parting { index, margin, expected: *expected, token: *token })
        };
        pairs.into_iter().find_map(part)
    }
}

/// Makes all texts. Gives their comparisons, and how many different ones there are where there is anything to compare.
pub(super) fn measure(
    rig: &mut Rig<'_>,
    deviation: f64,
) -> Result<(Vec<TextRun>, Option<usize>), DeviceError> {
    if rig.plan.generated == 0 {
        return Ok((Vec::new(), None));
    }
    rig.name("dense text".to_owned());
    let dense = dense(rig, Route::Again).map_err(|obstacle| match obstacle {
        Obstacle::Device(error) => error,
        Obstacle::Unmeasured(problem) => DeviceError::OutOfMemory { bytes: 0, problem },
    })?;
    let mut runs = Vec::new();
    let mut different = vec![dense.tokens.clone()];
    // The speculative text that its repetition is compared with.
    let mut first = None;
    for route in routes(rig) {
        rig.name(format!("{}: {}", route.finding().name(), route.label()));
        let made = match route {
            TextRoute::Dense(prefill) => self::dense(rig, prefill),
            TextRoute::Speculative(drafted) | TextRoute::SpeculativeAgain(drafted) => {
                speculative(rig, drafted, &dense.tokens)
            }
        };
        let text = match made {
            Ok(text) => text,
            Err(Obstacle::Device(error)) => return Err(error),
            Err(Obstacle::Unmeasured(why)) => {
                runs.push(TextRun { route, outcome: Err(why), drafts: None });
                continue;
            }
        };
        let outcome = match (route, &first) {
            (TextRoute::SpeculativeAgain(_), Some(first)) => Ok(text.parting(first, deviation)),
            (TextRoute::SpeculativeAgain(_), None) => Err("the first run was not measured".to_owned()),
            _ => Ok(text.parting(&dense, deviation)),
        };
        runs.push(TextRun { route, outcome, drafts: text.drafts });
        if !different.contains(&text.tokens) {
            different.push(text.tokens.clone());
        }
        if route == TextRoute::Speculative(REPEATED_DRAFT) {
            first = Some(text);
        }
    }
    Ok((runs, Some(different.len())))
}

/// The texts to compare, by finding.
fn routes(rig: &Rig<'_>) -> Vec<TextRoute> {
    let prompt = rig.plan.prompt();
    let chunk = rig.plan.chunk_tokens;
    let chunks = [7, 64].into_iter().filter(|size| *size < prompt && *size != chunk).map(Route::Chunks);
    let whole = (chunk < prompt).then_some(Route::Whole);
    let restore = boundaries(prompt, rig.page_tokens()).last().copied().map(Route::Restore);
    let prefills = [Route::Again].into_iter().chain(chunks).chain(whole).chain(restore);
    prefills
        .map(TextRoute::Dense)
        .chain(DRAFTS.map(TextRoute::Speculative))
        .chain([TextRoute::SpeculativeAgain(REPEATED_DRAFT)])
        .collect()
}

/// The prompt by `prefill`, and the text's first token.
fn begin(rig: &mut Rig<'_>, prefill: Route) -> Result<(Track, Text), Obstacle> {
    let mut text = Text::default();
    let mut last = None;
    let track = rig.prefill(prefill, Want::Last, &mut |_, row| last = Some(Top::of(row)))?;
    last.into_iter().for_each(|top| text.push(top));
    Ok((track, text))
}

fn dense(rig: &mut Rig<'_>, prefill: Route) -> Result<Text, Obstacle> {
    let (mut track, mut text) = begin(rig, prefill)?;
    while text.tokens.len() < rig.plan.generated {
        let last = text.tokens.last().copied().unwrap_or_default();
        let row = rig.forward(&mut track, &[last], false, LogitRows::Last)?;
        text.push(Top::of(&row));
    }
    Ok(text)
}

/// Verify cycles: the last token and a draft in one revocable forward, the draft accepted as far as it is what would have been chosen, the rest
/// taken back. Drafts are what `dense` says comes there, with every third token another.
fn speculative(rig: &mut Rig<'_>, drafted: usize, dense: &[u32]) -> Result<Text, Obstacle> {
    let (mut track, mut text) = begin(rig, Route::Again)?;
    let vocab = rig.vocab();
    let mut drafts = Drafts::default();
    while text.tokens.len() < rig.plan.generated {
        let done = text.tokens.len();
        let mut tokens: Vec<u32> = text.tokens.last().copied().into_iter().collect();
        // The token after an accepted draft comes free, so one less is drafted at the end.
        let room = drafted.min(rig.plan.generated - done - 1);
        let expected = dense.iter().enumerate().skip(done).take(room);
        tokens.extend(expected.map(|(index, token)| {
            if index % WRONG_EVERY == WRONG_EVERY - 1 { rig.other_than(*token) } else { *token }
        }));
        let (start, from) = (track.position, track.at);
        let rows = rig.forward(&mut track, &tokens, true, LogitRows::All)?;
        let tops = rows.chunks_exact(vocab).map(Top::of);
        let mut accepted = 0;
        for (top, draft) in tops.zip(tokens.iter().skip(1).map(Some).chain([None])) {
            text.push(top);
            if draft != Some(&top.token) {
                break;
            }
            accepted += 1;
        }
        if accepted + 1 < tokens.len() {
            rig.rewind(&mut track, start, from, accepted + 1)?;
        }
        drafts.cycles += 1;
        drafts.drafted += tokens.len() - 1;
        drafts.accepted += accepted;
    }
    text.drafts = Some(drafts);
    Ok(text)
}

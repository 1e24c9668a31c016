//! A verdict in one sentence.

use crate::compare::{
    HELD_WITHIN, Outcome, Owed, Recovered, RecoverySums, SPARSE, Speculated, SpeedUp, Spread, Verdict, Worth,
};
use crate::report::{counted, or_dash, seconds, thousands};

impl Verdict {
    /// The verdict in one sentence. Times are summed times to first token where nothing else is said. Of a lane that drafts it says what drafting was worth,
    /// and of prefill only where the lane scored.
    pub fn sentence(&self) -> String {
        let scored = self.scorer_sum_s.is_some_and(|sum| sum.max > 0.0);
        match &self.speculation {
            Some(drafted) if scored && drafted.failure().is_none() => {
                format!("{}; {}", self.of_drafting(drafted), self.of_prefill())
            }
            Some(drafted) => self.of_drafting(drafted),
            None => self.of_prefill(),
        }
    }

    /// `mtp decodes 1.62x as fast as ordinary decoding …`.
    fn of_drafting(&self, drafted: &Speculated) -> String {
        let (lane, against) = (&self.lane, &self.against);
        let speed_up = match &drafted.worth {
            Worth::Failure(failure) => {
                return format!("{lane} FAILED, so no speed-up is shown: {failure}");
            }
            Worth::SpeedUp(speed_up) => speed_up,
        };
        let Some(decode) = speed_up.decode.filter(|_| drafted.counters.cycles > 0) else {
            let why = drafted.ended.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            return match drafted.counters.cycles {
                0 => format!("{lane} drafted nothing{why}"),
                _ => format!("{lane} and {against}: no reply has been measured in both"),
            };
        };
        let other = if drafted.against_drafts { against.as_str() } else { "ordinary decoding" };
        let mut text = format!("{lane} decodes {} as fast as {other}", times(decode.median));
        if drafted.against_drafts {
            text += ": there is no lane without a drafter to compare with, so neither cost nor prediction is known";
        }
        if let Some((gives, costs)) = drafted.tokens_per_cycle.zip(drafted.cost_ratio) {
            let (gives, costs) = (gives.median, costs.median);
            text += &format!(": a cycle gives {gives:.2} tokens for {costs:.2} dense steps");
        }
        text += &speed_up.prediction(drafted.off.as_deref());
        if let Some(whole) = speed_up.whole {
            text += &format!("; end to end it is {} as fast", times(whole.median));
            text += &end_to_end(decode.median, whole.median, drafted, speed_up.whole_unprimed);
        }
        if let Some(why) = &drafted.ended {
            text += &format!("; not all of it was drafted: {why}");
        }
        if self.repeats == 1 && !self.simulated {
            text += " (one run)";
        }
        text
    }

    fn of_prefill(&self) -> String {
        let (Some(lead), Some(outcome)) = (&self.lead_s, self.outcome) else {
            return format!("{} and {}: no request has been answered in both", self.lane, self.against);
        };
        let mut text = self.course(lead.median, outcome);
        if let Some(owed) = &self.owed {
            text += &format!(" and owes {}", owed.words());
        }
        if let Some(owed) = &self.against_owed {
            text += &format!("; {} owes {}", self.against, owed.words());
        }
        if let Some(recovery) = &self.recovery {
            text += &recovery.words();
        }
        if let Some((whole, outcome)) = self.whole_lead_s.as_ref().zip(self.whole_outcome) {
            text += &format!("; with replies it ends {}", self.standing(whole.median, outcome));
        }
        let spread = self.lead_s.as_ref().filter(|lead| lead.min < 0.0 && lead.max > 0.0);
        if spread.is_some() {
            text += &format!("; {} repeats differ by more than that", self.repeats);
        } else if self.repeats == 1 && !self.simulated {
            text += " (one run)";
        }
        match self.partial {
            true => format!("over the first {}: {text}", counted(self.requests, "request")),
            false => text,
        }
    }

    /// How it went and how it ended.
    fn course(&self, lead: f64, outcome: Outcome) -> String {
        let (lane, against) = (&self.lane, &self.against);
        let ends = match outcome {
            Outcome::Faster => format!("ends {} of {against}", self.standing(lead, outcome)),
            Outcome::Slower => format!("ends {} {against}", self.standing(lead, outcome)),
            Outcome::Tie => format!("ends {} with {against}", self.standing(lead, outcome)),
        };
        let best = self.best_lead.as_ref().map(|best| (best, self.led_until));
        match (best, outcome) {
            (Some((best, Some(until))), Outcome::Slower | Outcome::Tie) if self.led_until != self.last => {
                let when = match self.led_from {
                    _ if self.led_throughout => format!("until turn {}", until.label()),
                    Some(from) if from != until => {
                        format!("from turn {} until turn {}", from.label(), until.label())
                    }
                    _ => format!("only after turn {}", until.label()),
                };
                let at = match best.place == until {
                    true => String::new(),
                    false => format!(" at turn {}", best.place.label()),
                };
                format!("{lane} led {when} (by {}{at}), {ends}", seconds(best.seconds))
            }
            (None, Outcome::Slower) => format!("{lane} never led, {ends}"),
            (Some((best, _)), Outcome::Faster) if Some(best.place) != self.last => {
                format!("{lane} {ends} (by {} at turn {})", seconds(best.seconds), best.place.label())
            }
            _ => format!("{lane} {ends}"),
        }
    }

    /// `16.3 s behind`, `6.3 s ahead`, `level`.
    fn standing(&self, lead: f64, outcome: Outcome) -> String {
        match outcome {
            Outcome::Faster => format!("{} ahead", seconds(lead)),
            Outcome::Slower => format!("{} behind", seconds(-lead)),
            Outcome::Tie => "level".to_owned(),
        }
    }
}

impl RecoverySums {
    /// `; it ends 2.1 s ahead of sparse; idle time pays: …`: what recovery did and who paid for it, request time told apart from idle time.
    fn words(&self) -> String {
        let Recovered { target_tokens, committed_tokens, publications_sum, .. } = self.at_the_end;
        let mut text = String::new();
        if let Some(lead) = &self.lead_over_sparse_s {
            text += &match lead {
                lead if lead.holds_zero() => format!("; against {SPARSE} it ends level"),
                lead if lead.median > 0.0 => format!("; it ends {} ahead of {SPARSE}", seconds(lead.median)),
                lead => format!("; it ends {} behind {SPARSE}", seconds(-lead.median)),
            };
        }
        let service = self.at_the_end.service_sum_s.filter(|service| service.max > 0.0);
        let Some(service) = service else { return text + "; recovery had nothing to do, or no time for it" };
        let of_idle = match self.at_the_end.idle_used {
            Some(used) => format!("{:.0} % of {}", used * 100.0, seconds(self.at_the_end.idle_sum_s)),
            None => "though there was none".to_owned(),
        };
        text += &format!(
            "; idle time pays, beside these sums: {} of compute, {of_idle}, for {}, {} of {} tokens restorable at the end",
            seconds(service.median),
            counted(publications_sum, "publication"),
            or_dash(committed_tokens, thousands),
            or_dash(target_tokens, thousands),
        );
        match self.at_the_end.delayed_sum_s.filter(|delayed| delayed.max > 0.0).zip(self.worst_delay_s) {
            Some((delayed, worst)) => {
                text += &format!(
                    "; requests pay {} of waiting for it, at most {}",
                    seconds(delayed.median),
                    seconds(worst)
                );
            }
            None => text += "; no request waited for it",
        }
        text
    }
}

impl SpeedUp {
    /// ` (1.60x predicted, held)`; where it did not hold, by how much and why.
    fn prediction(&self, why: Option<&str>) -> String {
        let (Some(predicted), Some(deviation)) = (self.predicted, self.deviation) else {
            return String::new();
        };
        let predicted = times(predicted.median);
        match self.held {
            Some(true) => format!(" ({predicted} predicted, held)"),
            _ => format!(
                " ({predicted} predicted, {:+.0} % off, more than {:.0} %{})",
                deviation * 100.0,
                HELD_WITHIN * 100.0,
                why.map(|why| format!(": {why}")).unwrap_or_default()
            ),
        }
    }
}

/// What is as good as no difference in two decimals.
const LEVEL: f64 = 0.005;

/// Where decoding and the whole do not end the same way, that is said in words: what a drafter costs before the first token counts against it. `unprimed` is
/// the whole without that cost, which tells whether it is the reason.
fn end_to_end(decode: f64, whole: f64, drafted: &Speculated, unprimed: Option<Spread>) -> String {
    let priming = drafted.priming_s.filter(|priming| priming.median > 0.0);
    let priming = priming.map(|priming| format!("{} of priming", seconds(priming.median)));
    let included = || priming.as_ref().map(|time| format!(", {time} included")).unwrap_or_default();
    let (wins, loses) = (|factor: f64| factor > 1.0 + LEVEL, |factor: f64| factor < 1.0 - LEVEL);
    if wins(decode) && loses(whole) {
        match &priming {
            Some(time) if unprimed.is_some_and(|unprimed| unprimed.median >= 1.0) => {
                format!(": decoding wins and the whole request loses, by {time}")
            }
            _ => format!(
                ": decoding wins and the whole request loses, which is not explained by priming{}",
                included()
            ),
        }
    } else if loses(decode) && wins(whole) {
        format!(
            ": decoding loses and the whole request wins, which is not explained by decoding{}",
            included()
        )
    } else {
        included()
    }
}

/// `1.62x`.
fn times(factor: f64) -> String {
    format!("{factor:.2}x")
}

impl Owed {
    fn words(&self) -> String {
        let about = self.seconds.map(|time| format!(" (≈ {})", seconds(time))).unwrap_or_default();
        format!("{}{about}", counted(self.tokens, "token"))
    }
}

//! A verdict in one sentence.

use crate::compare::{Outcome, Owed, Verdict};
use crate::report::{counted, seconds};

impl Verdict {
    /// The verdict in one sentence. Times are summed times to first token where nothing else is said.
    pub fn sentence(&self) -> String {
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

impl Owed {
    fn words(&self) -> String {
        let about = self.seconds.map(|time| format!(" (≈ {})", seconds(time))).unwrap_or_default();
        format!("{}{about}", counted(self.tokens, "token"))
    }
}

//! What is asked for on one line: the conditions at which the replay pauses, and a fault.

use super::app::Model;
use super::line::LineInput;
use super::text::thousands;
use super::watch;
use crate::engine::{Command, Fault};
use crate::event::LaneId;
use crate::ledger::Breakpoint;

/// What the line is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// The conditions at which the replay pauses, separated by commas.
    Breakpoints,
    /// A fault of [`Fault::FORMS`].
    Fault,
}

/// A line being typed in answer to a question, and what was wrong with it when it was last submitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// What it is for.
    pub question: Question,
    /// What is typed.
    pub line: LineInput,
    /// What is wrong with it, once it was submitted and refused.
    pub error: Option<String>,
}

impl Ask {
    /// Asks for breakpoints; those set stand there already.
    pub fn breakpoints(model: &Model) -> Ask {
        let set = watch::conditions(model).join(", ");
        Ask { question: Question::Breakpoints, line: LineInput::new(set), error: None }
    }

    /// Asks for a fault, of which `text` stands there already.
    pub fn fault(text: impl Into<String>) -> Ask {
        Ask { question: Question::Fault, line: LineInput::new(text), error: None }
    }

    /// The headline.
    pub fn title(&self) -> &'static str {
        match self.question {
            Question::Breakpoints => "pause the replay when",
            Question::Fault => "have something go wrong",
        }
    }

    /// The command that the line asks for, or what is wrong with it.
    pub fn command(&self, lane: LaneId) -> Result<Command, String> {
        match self.question {
            Question::Breakpoints => {
                let conditions = conditions(self.line.text());
                conditions.map(|conditions| Command::Break { conditions })
            }
            Question::Fault => {
                let fault: Result<Fault, _> = self.line.text().parse();
                fault.map(|fault| Command::Fault { lane, fault }).map_err(|error| error.to_string())
            }
        }
    }

    /// What stands below the line: how to write it, and what it would mean here.
    pub fn notes(&self, model: &Model) -> Vec<String> {
        match self.question {
            Question::Breakpoints => {
                let mut notes = vec![
                    "suffix>4000   checkpoint<1000       prompt>=8000      pinned>=3".to_owned(),
                    "debt>8000     canonical-debt>1000   ttft>2 (seconds)  cliff   cause=tools".to_owned(),
                    "Any one of them pauses; commas between them; an empty line clears them.".to_owned(),
                ];
                notes.extend(self.held_so_far(model));
                notes
            }
            Question::Fault => {
                let typed = self.line.text().split(':').next().unwrap_or_default().trim();
                let marker =
                    |form: &str| if !typed.is_empty() && form.starts_with(typed) { "▸" } else { " " };
                let note = |(form, words): &(&str, &str)| format!("{} {form:<20} {words}", marker(form));
                let mut notes: Vec<String> = Fault::FORMS.iter().map(note).collect();
                if let Some(blocks) = blocks_of_the_latest_prompt(model) {
                    notes.push(format!(
                        "Blocks are counted from 0 in lane {}'s latest prompt, which has {}.",
                        model.ui.lane.label(),
                        thousands(blocks as u64)
                    ));
                }
                notes
            }
        }
    }

    /// For which requests so far the typed conditions would have held.
    fn held_so_far(&self, model: &Model) -> Option<String> {
        let conditions = conditions(self.line.text()).ok().filter(|conditions| !conditions.is_empty())?;
        let history = model.history();
        let held = history.iter().filter(|request| {
            conditions.iter().any(|condition| model.ledger().observes(condition, request.id).is_some())
        });
        let turns: Vec<String> = held.map(|request| request.turn.to_string()).collect();
        Some(match &turns[..] {
            _ if history.is_empty() => return None,
            [] => "Held for no request of this lane so far.".to_owned(),
            [turn] => format!("Held for turn {turn} of this lane."),
            many => format!("Held for turns {} of this lane.", many.join(", ")),
        })
    }
}

fn conditions(text: &str) -> Result<Vec<Breakpoint>, String> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| part.parse().map_err(|error: crate::ledger::BadBreakpoint| error.to_string())).collect()
}

/// How many whole blocks the latest prompt of the lane in view has.
fn blocks_of_the_latest_prompt(model: &Model) -> Option<usize> {
    let latest = model.history().into_iter().rev().find_map(|request| request.restore.as_ref())?;
    Some(latest.blocks.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_separate_conditions_and_an_empty_line_clears_them() {
        let ask =
            |text: &str| Ask { question: Question::Breakpoints, line: LineInput::new(text), error: None };
        let Ok(Command::Break { conditions }) = ask("suffix>4000, cliff ,").command(LaneId(0)) else {
            panic!()
        };
        let words: Vec<String> = conditions.iter().map(ToString::to_string).collect();
        assert_eq!(words, ["suffix>4000", "cliff"]);
        assert_eq!(ask(" , ").command(LaneId(0)), Ok(Command::Break { conditions: Vec::new() }));
    }

    #[test]
    fn a_fault_is_parsed_for_the_lane_in_view_and_told_what_is_wrong() {
        let lane = LaneId(1);
        let fault = Fault::EvictBlock(3);
        assert_eq!(Ask::fault("evict-block:3").command(lane), Ok(Command::Fault { lane, fault }));
        assert!(Ask::fault("evict-block:").command(lane).unwrap_err().contains("a block is a number"));
    }
}

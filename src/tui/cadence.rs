//! When to draw. Pure: times come in as arguments, so it is tested without sleeping.
//!
//! Nothing is drawn unless something changed; an answer to input is drawn at once (within the frame limit), facts
//! from the engine within [`ENGINE_GAP`]; an idle interface asks for no wake-up at all.

use std::time::{Duration, Instant};

/// The longest time between a fact from the engine and the frame that shows it.
pub const ENGINE_GAP: Duration = Duration::from_millis(33);

/// What changed since the last frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Pending {
    Nothing,
    Facts,
    Input,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Draw {
    /// Draw.
    Now,
    /// Draw at that time, unless something more urgent comes.
    At(Instant),
    /// Nothing changed: sleep until something does.
    Never,
}

/// The frame scheduler.
#[derive(Debug)]
pub struct Cadence {
    frame: Duration,
    facts: Duration,
    last: Option<Instant>,
    pending: Pending,
}

impl Cadence {
    /// At most `max_fps` frames a second (1 to 240), one due at once.
    pub fn new(max_fps: u32) -> Cadence {
        let frame = Duration::from_secs(1) / max_fps.clamp(1, 240);
        Cadence { frame, facts: frame.max(ENGINE_GAP), last: None, pending: Pending::Input }
    }

    /// For a line where every frame costs: facts are shown half as often, answers to input as soon as ever.
    pub fn over_a_slow_line(mut self) -> Cadence {
        self.facts = self.facts.max(ENGINE_GAP * 2);
        self
    }

    /// The researcher did something, or the terminal changed.
    pub fn input(&mut self) {
        self.pending = Pending::Input;
    }

    /// Facts arrived.
    pub fn facts(&mut self) {
        self.pending = self.pending.max(Pending::Facts);
    }

    /// What to do at `now`.
    pub fn decide(&self, now: Instant) -> Draw {
        let gap = match self.pending {
            Pending::Nothing => return Draw::Never,
            Pending::Facts => self.facts,
            Pending::Input => self.frame,
        };
        match self.last {
            Some(last) if now.saturating_duration_since(last) < gap => Draw::At(last + gap),
            _ => Draw::Now,
        }
    }

    /// A frame was drawn at `now`.
    pub fn drawn(&mut self, now: Instant) {
        self.last = Some(now);
        self.pending = Pending::Nothing;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn the_first_frame_is_due_at_once_and_then_nothing_is() {
        let start = Instant::now();
        let mut cadence = Cadence::new(60);
        assert_eq!(cadence.decide(start), Draw::Now);
        cadence.drawn(start);
        assert_eq!(cadence.decide(start), Draw::Never);
        assert_eq!(cadence.decide(start + ms(10_000)), Draw::Never);
    }

    #[test]
    fn input_after_a_pause_is_answered_at_once() {
        let start = Instant::now();
        let mut cadence = Cadence::new(60);
        cadence.drawn(start);
        cadence.input();
        assert_eq!(cadence.decide(start + ms(50)), Draw::Now);
    }

    #[test]
    fn facts_wait_for_their_slot_and_input_does_not() {
        let start = Instant::now();
        let mut cadence = Cadence::new(60);
        cadence.drawn(start);
        cadence.facts();
        assert_eq!(cadence.decide(start + ms(1)), Draw::At(start + ENGINE_GAP));
        assert_eq!(cadence.decide(start + ms(33)), Draw::Now);
        cadence.input();
        assert_eq!(cadence.decide(start + ms(17)), Draw::Now);
        cadence.facts();
        assert_eq!(cadence.decide(start + ms(17)), Draw::Now, "facts do not delay an answer");
    }

    #[test]
    fn a_burst_draws_at_most_the_agreed_number_of_frames() {
        let start = Instant::now();
        let mut cadence = Cadence::new(60);
        let mut frames = 0;
        for micro in (0..1_000_000).step_by(100) {
            let now = start + Duration::from_micros(micro);
            if micro % 1_000 == 0 {
                cadence.input();
            }
            cadence.facts();
            if cadence.decide(now) == Draw::Now {
                cadence.drawn(now);
                frames += 1;
            }
        }
        assert!((55..=61).contains(&frames), "{frames}");
    }

    #[test]
    fn the_last_fact_of_a_burst_is_always_drawn() {
        let start = Instant::now();
        let mut cadence = Cadence::new(60);
        cadence.drawn(start);
        cadence.facts();
        let Draw::At(due) = cadence.decide(start + ms(2)) else { panic!("it must be scheduled") };
        assert_eq!(cadence.decide(due), Draw::Now);
    }
}

//! What a lane is: a name, and the settings by which it differs from the others.

use std::str::FromStr;

use crate::config::{Config, ConfigError, ControllerKind, DrafterKind, Override, SpeculationConfig};
use crate::recovery::job::Mode;
use crate::report::counted;

/// The lane that computes every suffix densely and drafts nothing: what the others are compared with.
pub const DENSE: &str = "dense";
/// The lane that drafts nothing, and is otherwise as configured. Where there is no dense lane, the others are compared with it.
pub const NONE: &str = "none";
/// The lane that computes long suffixes sparsely.
pub const SPARSE: &str = "sparse";
/// The sparse lane with background recovery that publishes only when all of a prompt is recovered.
pub const TERMINAL: &str = "terminal";
/// The sparse lane with background recovery that publishes block by block.
pub const PROGRESSIVE: &str = "progressive";
/// How many lanes there can be.
pub const LANES: std::ops::RangeInclusive<usize> = 2..=4;

/// The longest name: it heads columns of a table.
const LONGEST_NAME: usize = 12;

/// A lane as it is asked for: `NAME`, or `NAME:key=value,key=value`.
#[derive(Debug, Clone, PartialEq)]
pub struct LaneSpec {
    /// Its name; also that of its folder and its recording.
    pub name: String,
    /// What is set in it, over everything else that is set.
    pub overrides: Vec<Override>,
    /// Whether its drafter is its own: then transports have no say in it.
    drafts_by_itself: bool,
}

/// The lane that the others are compared with: the dense one, else the one without a drafter, else the first.
pub(super) fn base(names: &[String]) -> usize {
    let place = |name: &str| names.iter().position(|other| other == name);
    place(DENSE).or_else(|| place(NONE)).unwrap_or(0)
}

/// Why there cannot be such a lane, or such lanes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`--lane {lane}`: {problem}; {remedy}")]
pub struct BadLane {
    /// The lane, as it was asked for.
    pub lane: String,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
}

impl BadLane {
    fn new(lane: &str, problem: impl Into<String>, remedy: impl Into<String>) -> BadLane {
        BadLane { lane: lane.to_owned(), problem: problem.into(), remedy: remedy.into() }
    }
}

impl LaneSpec {
    /// The dense lane.
    pub fn dense() -> LaneSpec {
        LaneSpec::named(DENSE)
    }

    /// The sparse lane, with the knobs of the configuration.
    pub fn sparse() -> LaneSpec {
        LaneSpec::named(SPARSE)
    }

    /// The sparse lane with background recovery.
    pub fn recovering(mode: Mode) -> LaneSpec {
        match mode {
            Mode::Terminal => LaneSpec::named(TERMINAL),
            Mode::Progressive => LaneSpec::named(PROGRESSIVE),
        }
    }

    /// The lane of a drafter: at a fixed depth, or adaptive where there is none.
    pub fn drafting(drafter: DrafterKind, depth: Option<u32>) -> LaneSpec {
        match depth {
            Some(depth) => LaneSpec::named(&format!("{}-{depth}", drafter.word())),
            None => LaneSpec::named(drafter.word()),
        }
    }

    fn named(name: &str) -> LaneSpec {
        let drafts_by_itself = name == DENSE || Drafting::of(name).is_some();
        LaneSpec { name: name.to_owned(), overrides: preset(name), drafts_by_itself }
    }

    /// Whether this is the lane that the others are compared with.
    pub fn is_dense(&self) -> bool {
        self.name == DENSE
    }

    /// What every lane's configuration has beyond the lane's own settings: a cache folder of its own, and logits to compare.
    pub fn finish(&self, mut config: Config) -> Config {
        if let Some(dir) = &mut config.cache.dir {
            dir.push(&self.name);
        }
        config.replay.tell_logits = true;
        if self.drafts_by_itself {
            config.policy.forget_speculation();
        }
        config
    }
}

/// What a lane's name says of its drafter: `ngram`, `mtp-2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Drafting {
    drafter: DrafterKind,
    /// The fixed depth, as far as it is one; `None` where the controller chooses.
    depth: Option<u32>,
}

impl Drafting {
    fn of(name: &str) -> Option<Drafting> {
        let (word, depth) = match name.split_once('-') {
            // A sign or a leading zero would make two names of one lane.
            Some((word, digits))
                if digits.bytes().all(|c| c.is_ascii_digit()) && !digits.starts_with('0') =>
            {
                (word, Some(digits.parse().ok()?))
            }
            Some(_) => return None,
            None => (name, None),
        };
        let drafter = DrafterKind::parse(word)?;
        (drafter != DrafterKind::None || depth.is_none()).then_some(Drafting { drafter, depth })
    }
}

/// What a name sets by itself.
fn preset(name: &str) -> Vec<Override> {
    let option = format!("--lane {name}");
    let set = |key: &str, on: bool| Override::new(&option, key, on);
    let word = |key: &str, word: &str| Override::new(&option, key, word);
    let no_drafter = || word("speculation.drafter", DrafterKind::None.word());
    match name {
        DENSE => vec![set("specprefill.enabled", false), no_drafter(), set("recovery.enabled", false)],
        NONE => vec![no_drafter()],
        // Of a transport whose default is off, too: the lane is there to see what it would cost.
        SPARSE | TERMINAL | PROGRESSIVE => {
            let mut settings = vec![
                set("specprefill.enabled", true),
                set("policy.agent.enabled", true),
                set("recovery.enabled", name != SPARSE),
            ];
            settings.extend((name != SPARSE).then(|| word("recovery.mode", name)));
            settings
        }
        _ => match Drafting::of(name) {
            Some(Drafting { drafter, depth }) => {
                let controller = match depth {
                    Some(_) => ControllerKind::Fixed,
                    None => ControllerKind::Adaptive,
                };
                let mut settings = vec![
                    word("speculation.drafter", drafter.word()),
                    word("speculation.controller", controller.word()),
                ];
                settings.extend(depth.map(|n| Override::new(&option, "speculation.depth", i64::from(n))));
                settings
            }
            None => Vec::new(),
        },
    }
}

/// Why a lane stays what the others are compared with, where `key` would make another of it.
fn kept_as_it_is(name: &str, key: &str) -> Option<&'static str> {
    match (name, key) {
        (DENSE, "specprefill.enabled") => Some("stays dense"),
        (DENSE | NONE, "speculation.drafter") => Some("has no drafter"),
        _ => None,
    }
}

/// `key=value,key=value` in its parts. A value may hold commas: what has no `=` belongs to the part before it.
fn settings(text: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for part in text.split(',') {
        match parts.last_mut() {
            Some(last) if !part.contains('=') => {
                last.push(',');
                last.push_str(part);
            }
            _ => parts.push(part.to_owned()),
        }
    }
    parts
}

impl FromStr for LaneSpec {
    type Err = BadLane;

    fn from_str(text: &str) -> Result<LaneSpec, BadLane> {
        let (name, rest) = match text.split_once(':') {
            Some((name, rest)) => (name, Some(rest)),
            None => (text, None),
        };
        // The name becomes part of a path.
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(fits) {
            let remedy = format!("a name is 1 to {LONGEST_NAME} letters, digits, `-` and `_`");
            return Err(BadLane::new(text, format!("`{name}` is no name for a lane"), remedy));
        }
        let mut lane = LaneSpec::named(name);
        let overrides = &mut lane.overrides;
        let depths = 1..=SpeculationConfig::MAX_DEPTH;
        if let Some(Drafting { drafter, depth: Some(depth) }) = Drafting::of(name)
            && !depths.contains(&depth)
        {
            return Err(BadLane::new(
                text,
                format!("no cycle drafts {depth} tokens"),
                format!("write `{0}-{1}` to `{0}-{2}`", drafter.word(), depths.start(), depths.end()),
            ));
        }
        if rest.is_none() && overrides.is_empty() {
            return Err(BadLane::new(
                text,
                "nothing distinguishes it",
                format!(
                    "write `{name}:key=value`, or one of `{DENSE}`, `{SPARSE}`, `{TERMINAL}`, `{PROGRESSIVE}`, `{NONE}`, `ngram`, `mtp`, `draft`; `mtp-2` drafts 2 tokens a cycle"
                ),
            ));
        }
        let origin = format!("--lane {text}");
        for setting in rest.map(settings).unwrap_or_default() {
            let set = Override::parse_as(&origin, &setting).map_err(|ConfigError { problem, .. }| {
                BadLane::new(
                    text,
                    format!("in `{setting}` {problem}"),
                    "write `NAME:section.key=value`, further ones behind a comma",
                )
            })?;
            if let Some(how) = kept_as_it_is(name, set.key()) {
                return Err(BadLane::new(
                    text,
                    format!("the lane `{name}` is what the others are compared with, and {how}"),
                    "give the lane another name",
                ));
            }
            overrides.push(set);
        }
        Ok(lane)
    }
}

/// The lanes that are run when these are asked for: dense and sparse where none are, and first the one that the others are compared with, unless it is not
/// wanted. That is the dense one, or `none` where it is asked for and the dense one is not.
pub fn lanes(asked: &[LaneSpec], without_dense: bool) -> Result<Vec<LaneSpec>, BadLane> {
    let mut lanes = match asked {
        [] => vec![LaneSpec::sparse()],
        asked => asked.to_vec(),
    };
    for (place, lane) in lanes.iter().enumerate() {
        if lanes[..place].iter().any(|other| other.name == lane.name) {
            return Err(BadLane::new(&lane.name, "there are two lanes of this name", "give each its own"));
        }
    }
    let place = |name: &str| lanes.iter().position(|lane| lane.name == name);
    let (dense, without_drafter) = (place(DENSE), place(NONE));
    match (dense, without_dense) {
        (None, false) if without_drafter.is_none() => lanes.insert(0, LaneSpec::dense()),
        (Some(place), false) => lanes[..=place].rotate_right(1),
        (Some(place), true) => drop(lanes.remove(place)),
        (None, _) => {
            if let Some(place) = without_drafter {
                lanes[..=place].rotate_right(1);
            }
        }
    }
    if !LANES.contains(&lanes.len()) {
        let names: Vec<&str> = lanes.iter().map(|lane| lane.name.as_str()).collect();
        let (fewest, most) = (LANES.start(), LANES.end());
        return Err(BadLane::new(
            &names.join(", "),
            counted(lanes.len() as u64, "lane"),
            format!("{fewest} to {most} can be compared; add a `--lane`, or leave one out"),
        ));
    }
    Ok(lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<LaneSpec, BadLane> {
        text.parse()
    }

    fn config(lane: &LaneSpec) -> Config {
        crate::config::load(None, &lane.overrides).unwrap()
    }

    #[test]
    fn a_lane_is_a_name_and_what_it_sets() {
        let lane = parse("keep10:specprefill.enabled=true,specprefill.keep=0.1").unwrap();
        let set = config(&lane).specprefill;
        assert_eq!((lane.name.as_str(), set.enabled, set.keep), ("keep10", Some(true), Some(0.1)));
        assert_eq!(config(&parse("sparse").unwrap()).specprefill.enabled, Some(true));
        assert_eq!(config(&parse("dense").unwrap()).specprefill.enabled, Some(false));
        let sparse = config(&parse("sparse:specprefill.threshold=64").unwrap()).specprefill;
        assert_eq!((sparse.enabled, sparse.threshold), (Some(true), Some(64)));
    }

    #[test]
    fn a_value_may_hold_commas() {
        let lane = parse("a:model.path=x,y,specprefill.keep=0.5").unwrap();
        let config = config(&lane);
        assert_eq!((config.model.path, config.specprefill.keep), (Some("x,y".into()), Some(0.5)));
    }

    #[test]
    fn what_cannot_be_a_lane_is_told_with_a_remedy() {
        for (text, problem) in [
            ("", "is no name"),
            ("../x:specprefill.keep=0.1", "is no name"),
            ("a-name-that-is-too-long:cache.enabled=true", "is no name"),
            ("other", "nothing distinguishes it"),
            ("a:keep", "there is no `=`"),
            ("dense:specprefill.enabled=true", "stays dense"),
            ("dense:speculation.drafter=mtp", "has no drafter"),
            ("none:speculation.drafter=mtp", "has no drafter"),
            ("mtp-17", "no cycle drafts 17 tokens; write `mtp-1` to `mtp-16`"),
            ("ngram-0", "nothing distinguishes it"),
            ("ngram-+2", "is no name"),
            ("none-2", "nothing distinguishes it"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }

    #[test]
    fn the_presets_hold_whatever_the_transport_is() {
        let enabled = |lane: LaneSpec, transport| {
            let config = crate::config::load(None, &lane.overrides).unwrap();
            let nothing = crate::config::SparseOverride::default();
            crate::prefill::sparse::resolve(&config, transport, nothing, nothing).enabled.value
        };
        for transport in [None, Some("agent"), Some("long-context")] {
            assert!(enabled(LaneSpec::sparse(), transport), "{transport:?}");
            assert!(!enabled(LaneSpec::dense(), transport), "{transport:?}");
        }
    }

    #[test]
    fn a_recovering_lane_is_the_sparse_one_with_recovery_and_the_plain_ones_have_none() {
        let on = Override::parse("recovery.enabled=true").unwrap();
        let says = |name: &str| {
            let overrides = [vec![on.clone()], parse(name).unwrap().overrides].concat();
            let config = crate::config::load(None, &overrides).unwrap();
            (config.specprefill.enabled, config.recovery.enabled, config.recovery.mode)
        };
        assert_eq!(says("dense"), (Some(false), false, Mode::Progressive));
        assert_eq!(says("sparse"), (Some(true), false, Mode::Progressive));
        assert_eq!(says("terminal"), (Some(true), true, Mode::Terminal));
        assert_eq!(says("progressive"), (Some(true), true, Mode::Progressive));
        let slow = config(&parse("progressive:recovery.slice_tokens=64").unwrap()).recovery;
        assert_eq!((slow.enabled, slow.slice_tokens), (true, 64));
        assert_eq!(LaneSpec::recovering(Mode::Terminal), parse("terminal").unwrap());
    }

    #[test]
    fn a_drafters_name_is_a_lane_at_a_depth_or_adaptive() {
        let says = |text: &str| {
            let says = config(&parse(text).unwrap()).speculation.says();
            (says.drafter.map(DrafterKind::word), says.depth, says.controller.map(ControllerKind::word))
        };
        assert_eq!(says("ngram"), (Some("ngram"), None, Some("adaptive")));
        assert_eq!(says("mtp-2"), (Some("mtp"), Some(2), Some("fixed")));
        assert_eq!(says("draft-16"), (Some("draft"), Some(16), Some("fixed")));
        assert_eq!(says("none"), (Some("none"), None, None));
        assert_eq!(says("dense"), (Some("none"), None, None));
        assert_eq!(says("ngram:speculation.depth=8"), (Some("ngram"), Some(8), Some("adaptive")));
        assert_eq!(LaneSpec::drafting(DrafterKind::Mtp, Some(2)), parse("mtp-2").unwrap());
    }

    #[test]
    fn a_drafters_lane_has_its_drafter_whatever_the_transport_is() {
        let settings = ["policy.agent.drafter=draft", "policy.agent.depth=2", "policy.agent.keep=0.5"];
        let settings: Vec<_> = settings.iter().map(|text| Override::parse(text).unwrap()).collect();
        for (text, drafter) in
            [("mtp", DrafterKind::Mtp), ("dense", DrafterKind::None), ("none", DrafterKind::None)]
        {
            let lane = parse(text).unwrap();
            let all = [settings.clone(), lane.overrides.clone()].concat();
            let config = lane.finish(crate::config::load(None, &all).unwrap());
            let nothing = crate::config::SpeculationOverride::default();
            let settings = crate::decode::settings::resolve(&config, Some("agent"), nothing, nothing);
            assert_eq!((settings.drafter.value, settings.depth.value), (drafter, 4), "{text}");
            assert_eq!(config.policy.get("agent").unwrap().keep, Some(0.5));
        }
    }

    #[test]
    fn a_lane_without_drafter_stands_in_for_the_dense_one() {
        let names = |asked: &[&str], without: bool| {
            let asked: Vec<_> = asked.iter().map(|text| parse(text).unwrap()).collect();
            let lanes = lanes(&asked, without).unwrap();
            lanes.into_iter().map(|lane| lane.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&["ngram", "none", "mtp", "draft"], false), ["none", "ngram", "mtp", "draft"]);
        assert_eq!(names(&["ngram", "none"], true), ["none", "ngram"]);
        assert_eq!(names(&["ngram", "none", "dense"], false), ["dense", "ngram", "none"]);
        let place = |names: &[&str]| base(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!((place(&["a", "dense", "none"]), place(&["a", "none"]), place(&["a", "b"])), (1, 1, 0));
    }

    #[test]
    fn dense_is_always_among_them_and_first_unless_it_is_refused() {
        let names = |asked: &[&str], without: bool| {
            let asked: Vec<_> = asked.iter().map(|text| parse(text).unwrap()).collect();
            lanes(&asked, without).map(|lanes| lanes.into_iter().map(|lane| lane.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[], false).unwrap(), ["dense", "sparse"]);
        assert_eq!(names(&["sparse", "a:specprefill.keep=0.1"], false).unwrap(), ["dense", "sparse", "a"]);
        assert_eq!(names(&["sparse", "dense"], false).unwrap(), ["dense", "sparse"]);
        assert_eq!(names(&["sparse", "dense", "a:cache.enabled=true"], true).unwrap(), ["sparse", "a"]);
        assert!(names(&["sparse"], true).unwrap_err().to_string().contains("2 to 4"));
        assert!(names(&["dense"], false).unwrap_err().to_string().contains("2 to 4"));
        let five = ["a:cache.enabled=true", "b:cache.enabled=true", "c:cache.enabled=true", "sparse"];
        assert!(names(&five, false).is_err());
        assert!(names(&["sparse", "sparse"], false).unwrap_err().to_string().contains("two lanes"));
    }

    #[test]
    fn each_lane_has_its_own_cache_folder_and_tells_its_logits() {
        let config = Config {
            cache: crate::config::CacheConfig { dir: Some("kept".into()), ..Default::default() },
            ..Config::default()
        };
        let finished = LaneSpec::sparse().finish(config);
        assert_eq!(finished.cache.dir, Some("kept/sparse".into()));
        assert!(finished.replay.tell_logits);
        assert_eq!(LaneSpec::dense().finish(Config::default()).cache.dir, None);
    }
}

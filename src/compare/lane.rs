//! What a lane is: a name, and the settings by which it differs from the others.

use std::str::FromStr;

use crate::config::{Config, ConfigError, Override};
use crate::report::counted;

/// The lane that computes every suffix densely: what the others are compared with.
pub const DENSE: &str = "dense";
/// The lane that computes long suffixes sparsely.
pub const SPARSE: &str = "sparse";
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
        LaneSpec { name: DENSE.to_owned(), overrides: preset(DENSE) }
    }

    /// The sparse lane, with the knobs of the configuration.
    pub fn sparse() -> LaneSpec {
        LaneSpec { name: SPARSE.to_owned(), overrides: preset(SPARSE) }
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
        config
    }
}

/// What a name sets by itself.
fn preset(name: &str) -> Vec<Override> {
    let set = |key: &str, on: bool| Override::new(&format!("--lane {name}"), key, on);
    match name {
        DENSE => vec![set("specprefill.enabled", false)],
        // Of a transport whose default is off, too: the lane is there to see what it would cost.
        SPARSE => vec![set("specprefill.enabled", true), set("policy.agent.enabled", true)],
        _ => Vec::new(),
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
        let mut overrides = preset(name);
        if rest.is_none() && overrides.is_empty() {
            return Err(BadLane::new(
                text,
                "nothing distinguishes it",
                format!("write `{name}:key=value`, or `{DENSE}` or `{SPARSE}`"),
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
            if name == DENSE && set.key() == "specprefill.enabled" {
                return Err(BadLane::new(
                    text,
                    format!("the lane `{DENSE}` is what the others are compared with, and stays dense"),
                    "give the lane another name",
                ));
            }
            overrides.push(set);
        }
        Ok(LaneSpec { name: name.to_owned(), overrides })
    }
}

/// The lanes that are run when these are asked for: dense and sparse where none are, and the dense one first unless it is not wanted.
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
    match (lanes.iter().position(LaneSpec::is_dense), without_dense) {
        (None, false) => lanes.insert(0, LaneSpec::dense()),
        (Some(place), false) => lanes[..=place].rotate_right(1),
        (Some(place), true) => drop(lanes.remove(place)),
        (None, true) => {}
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

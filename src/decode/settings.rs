//! Who may set speculative decoding, and what is in effect.

use crate::config::{Config, ControllerKind, DrafterKind, SpeculationConfig, SpeculationOverride};
use crate::event::{Effective, SetBy};

/// The settings a request decodes by.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeculationSettings {
    /// What guesses.
    pub drafter: Effective<DrafterKind>,
    /// Tokens drafted in a cycle at most.
    pub depth: Effective<u32>,
    /// What chooses the depth.
    pub controller: Effective<ControllerKind>,
}

/// The settings in effect for a request, each with who set it.
///
/// A default gives way to the model's settings (`[speculation]`), those to the defaults of the request's transport, those to what the request says,
/// and that to what was set by hand. But the drafter `none` beats everything: where the model's settings, the request or the hand say it, no other
/// drafter above them is used, and the first of them that says so is named. Only a transport's `none` is no more than a default.
///
/// A transport without a section counts as one that says nothing.
pub fn resolve(
    config: &Config,
    transport: Option<&str>,
    request: SpeculationOverride,
    hand: SpeculationOverride,
) -> SpeculationSettings {
    let mut levels = vec![(SetBy::Model, config.speculation.says())];
    if let Some((name, policy)) = transport.and_then(|name| Some((name, config.policy.get(name)?))) {
        levels.push((SetBy::Transport(name.to_owned()), policy.speculation()));
    }
    levels.push((SetBy::Request, request));
    levels.push((SetBy::Hand, hand));
    let forbids = |(by, says): &&(SetBy, SpeculationOverride)| {
        says.drafter == Some(DrafterKind::None) && !matches!(by, SetBy::Transport(_))
    };
    let drafter = match levels.iter().find(forbids) {
        Some((by, _)) => Effective { value: DrafterKind::None, set_by: by.clone() },
        None => last_said(&levels, DrafterKind::None, |says| says.drafter),
    };
    SpeculationSettings {
        drafter,
        depth: last_said(&levels, SpeculationConfig::DEPTH, |says| says.depth),
        controller: last_said(&levels, ControllerKind::Adaptive, |says| says.controller),
    }
}

/// What the last level that says anything says.
fn last_said<T>(
    levels: &[(SetBy, SpeculationOverride)],
    default: T,
    setting: impl Fn(&SpeculationOverride) -> Option<T>,
) -> Effective<T> {
    let said = |(by, says): &(SetBy, SpeculationOverride)| {
        Some(Effective { value: setting(says)?, set_by: by.clone() })
    };
    levels.iter().rev().find_map(said).unwrap_or(Effective { value: default, set_by: SetBy::Default })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::{SparseOverride, TransportPolicy, Transports};

    const SAYS_NOTHING: SpeculationOverride =
        SpeculationOverride { drafter: None, depth: None, controller: None };

    fn says(drafter: impl Into<Option<DrafterKind>>) -> SpeculationOverride {
        SpeculationOverride { drafter: drafter.into(), ..SAYS_NOTHING }
    }

    /// A configuration whose model's settings name `drafter`, and whose transport `mine` says `policy`.
    fn config(drafter: impl Into<Option<DrafterKind>>, policy: SpeculationOverride) -> Config {
        let mut config = Config::default();
        config.speculation.drafter = drafter.into();
        config.policy = Transports::of([("mine", TransportPolicy::of(SparseOverride::default(), policy))]);
        config
    }

    fn mine() -> SetBy {
        SetBy::Transport("mine".to_owned())
    }

    #[test]
    fn nobody_says_anything() {
        let settings = resolve(&Config::default(), None, SAYS_NOTHING, SAYS_NOTHING);
        assert_eq!(settings.drafter, Effective { value: DrafterKind::None, set_by: SetBy::Default });
        assert_eq!(settings.depth, Effective { value: 4, set_by: SetBy::Default });
        assert_eq!(
            settings.controller,
            Effective { value: ControllerKind::Adaptive, set_by: SetBy::Default }
        );
    }

    #[test]
    fn each_level_overrides_those_below_it() {
        use DrafterKind::{Draft, Mtp, Ngram};
        let config = config(Ngram, says(Mtp));
        let drafter = |transport, request: Option<DrafterKind>, hand: Option<DrafterKind>| {
            let found = resolve(&config, transport, says(request), says(hand)).drafter;
            (found.value, found.set_by)
        };
        assert_eq!(drafter(None, None, None), (Ngram, SetBy::Model));
        assert_eq!(drafter(Some("mine"), None, None), (Mtp, mine()));
        assert_eq!(drafter(Some("mine"), Some(Draft), None), (Draft, SetBy::Request));
        assert_eq!(drafter(Some("mine"), Some(Draft), Some(Ngram)), (Ngram, SetBy::Hand));
        assert_eq!(drafter(Some("no such"), None, None), (Ngram, SetBy::Model));
    }

    #[test]
    fn f26_none_beats_everything_but_a_transports_is_a_default() {
        use DrafterKind::{Mtp, Ngram, None as Nothing};
        let drafter = |of_model: Option<DrafterKind>, policy, request, hand| {
            let found = resolve(&config(of_model, policy), Some("mine"), says(request), says(hand)).drafter;
            (found.value, found.set_by)
        };
        assert_eq!(drafter(Some(Nothing), SAYS_NOTHING, Some(Ngram), Some(Mtp)), (Nothing, SetBy::Model));
        assert_eq!(drafter(Some(Mtp), SAYS_NOTHING, Some(Nothing), Some(Mtp)), (Nothing, SetBy::Request));
        assert_eq!(drafter(Some(Mtp), SAYS_NOTHING, Some(Ngram), Some(Nothing)), (Nothing, SetBy::Hand));
        assert_eq!(drafter(Some(Mtp), says(Nothing), None, None), (Nothing, mine()));
        assert_eq!(drafter(Some(Mtp), says(Nothing), Some(Ngram), None), (Ngram, SetBy::Request));
    }

    #[test]
    fn depth_and_controller_are_of_the_last_that_gave_one() {
        let policy = SpeculationOverride { depth: Some(2), ..SAYS_NOTHING };
        let request = SpeculationOverride { controller: Some(ControllerKind::Fixed), ..SAYS_NOTHING };
        let settings = resolve(&config(None, policy), Some("mine"), request, SAYS_NOTHING);
        assert_eq!(settings.depth, Effective { value: 2, set_by: mine() });
        assert_eq!(settings.controller, Effective { value: ControllerKind::Fixed, set_by: SetBy::Request });
        let hand = SpeculationOverride { depth: Some(7), ..SAYS_NOTHING };
        let settings = resolve(&config(None, policy), Some("mine"), request, hand);
        assert_eq!(settings.depth, Effective { value: 7, set_by: SetBy::Hand });
    }

    proptest! {
        #[test]
        fn a_drafter_is_used_only_if_somebody_asked_and_nobody_forbade(
            said in prop::array::uniform4(prop::option::of(prop::sample::select(&DrafterKind::ALL[..]))),
            named in any::<bool>(),
        ) {
            let [of_model, of_transport, of_request, of_hand] = said;
            let transport = named.then_some("mine");
            let found = resolve(&config(of_model, says(of_transport)), transport, says(of_request), says(of_hand));
            let forbidden = [of_model, of_request, of_hand].contains(&Some(DrafterKind::None));
            let asked = of_hand.or(of_request).or(of_transport.filter(|_| named)).or(of_model);
            let expected = asked.filter(|_| !forbidden).unwrap_or(DrafterKind::None);
            prop_assert_eq!(found.drafter.value, expected);
            prop_assert_eq!(found.drafter.set_by == SetBy::Default, asked.is_none());
        }
    }
}

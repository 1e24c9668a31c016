//! What becomes of all that is said about a request.

use crate::config::{Config, SparseOverride, SpecPrefillConfig};
use crate::event::{Effective, SetBy, SparseSettings};

/// The settings that a request is served by, each with who set it.
///
/// A default gives way to the model's settings (`[specprefill]`), those to the defaults of the request's transport, those to what the request says,
/// and that to what was set by hand. But `false` beats everything: where the model's settings, the request or the hand say that sparse prefill is off,
/// no `true` above them switches it on, and the first of them that says so is named. Only a transport's `false` is no more than a default.
///
/// A transport without a section counts as one that says nothing.
pub fn resolve(
    config: &Config,
    transport: Option<&str>,
    request: SparseOverride,
    hand: SparseOverride,
) -> SparseSettings {
    let mut levels = vec![(SetBy::Model, config.specprefill.says())];
    if let Some((name, policy)) = transport.and_then(|name| Some((name, config.policy.get(name)?))) {
        levels.push((SetBy::Transport(name.to_owned()), policy.specprefill()));
    }
    levels.push((SetBy::Request, request));
    levels.push((SetBy::Hand, hand));
    let forbids = |(by, says): &&(SetBy, SparseOverride)| {
        says.enabled == Some(false) && !matches!(by, SetBy::Transport(_))
    };
    let enabled = match levels.iter().find(forbids) {
        Some((by, _)) => Effective { value: false, set_by: by.clone() },
        None => last_said(&levels, false, |says| says.enabled),
    };
    SparseSettings {
        enabled,
        keep: last_said(&levels, SpecPrefillConfig::KEEP, |says| says.keep),
        threshold: last_said(&levels, SpecPrefillConfig::THRESHOLD, |says| says.threshold),
    }
}

/// What the last level that says anything says.
fn last_said<T>(
    levels: &[(SetBy, SparseOverride)],
    default: T,
    setting: impl Fn(&SparseOverride) -> Option<T>,
) -> Effective<T> {
    let said =
        |(by, says): &(SetBy, SparseOverride)| Some(Effective { value: setting(says)?, set_by: by.clone() });
    levels.iter().rev().find_map(said).unwrap_or(Effective { value: default, set_by: SetBy::Default })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::{SpeculationOverride, TransportPolicy, Transports};

    const SAYS_NOTHING: SparseOverride = SparseOverride { enabled: None, keep: None, threshold: None };

    fn says(enabled: impl Into<Option<bool>>) -> SparseOverride {
        SparseOverride { enabled: enabled.into(), ..SAYS_NOTHING }
    }

    fn model(enabled: impl Into<Option<bool>>) -> Config {
        let mut config = Config::default();
        config.specprefill.enabled = enabled.into();
        config
    }

    fn agent() -> SetBy {
        SetBy::Transport("agent".to_owned())
    }

    #[test]
    fn nobody_says_anything() {
        let settings = resolve(&Config::default(), None, SAYS_NOTHING, SAYS_NOTHING);
        assert_eq!(settings.enabled, Effective { value: false, set_by: SetBy::Default });
        assert_eq!(settings.keep, Effective { value: 0.2, set_by: SetBy::Default });
        assert_eq!(settings.threshold, Effective { value: 8192, set_by: SetBy::Default });
    }

    #[test]
    fn f26_a_transport_overrides_the_model_and_a_request_overrides_it() {
        let enabled = |config: &Config, transport, request, hand| {
            let found = resolve(config, transport, says(request), says(hand)).enabled;
            (found.value, found.set_by)
        };
        let on = model(true);
        assert_eq!(enabled(&on, None, None, None), (true, SetBy::Model));
        assert_eq!(enabled(&on, Some("agent"), None, None), (false, agent()));
        assert_eq!(enabled(&on, Some("long-context"), None, None), (true, SetBy::Model));
        assert_eq!(enabled(&on, Some("agent"), Some(true), None), (true, SetBy::Request));
        assert_eq!(enabled(&on, Some("agent"), None, Some(true)), (true, SetBy::Hand));
        assert_eq!(enabled(&model(None), None, Some(true), None), (true, SetBy::Request));
        assert_eq!(enabled(&on, Some("no such"), None, None), (true, SetBy::Model));
    }

    #[test]
    fn f26_false_beats_everything_but_a_transports_is_a_default() {
        let enabled = |config: &Config, request, hand| {
            let found = resolve(config, Some("long-context"), says(request), says(hand)).enabled;
            (found.value, found.set_by)
        };
        assert_eq!(enabled(&model(false), Some(true), Some(true)), (false, SetBy::Model));
        assert_eq!(enabled(&model(true), Some(false), Some(true)), (false, SetBy::Request));
        assert_eq!(enabled(&model(true), Some(true), Some(false)), (false, SetBy::Hand));
        assert_eq!(enabled(&model(false), Some(false), Some(false)), (false, SetBy::Model));
    }

    #[test]
    fn a_value_is_of_the_last_that_gave_one() {
        let mut config = Config::default();
        config.specprefill.keep = Some(0.2);
        config.specprefill.threshold = Some(1000);
        let request = SparseOverride { keep: Some(0.5), ..SAYS_NOTHING };
        let settings = resolve(&config, Some("agent"), request, SAYS_NOTHING);
        assert_eq!(settings.keep, Effective { value: 0.5, set_by: SetBy::Request });
        assert_eq!(settings.threshold, Effective { value: 1000, set_by: SetBy::Model });
        // A value that was set is told as set, though it is the default's.
        let settings = resolve(&config, None, SAYS_NOTHING, SAYS_NOTHING);
        assert_eq!(settings.keep, Effective { value: 0.2, set_by: SetBy::Model });
    }

    proptest! {
        #[test]
        fn sparse_prefill_is_on_only_if_somebody_asked_and_nobody_forbade(
            said in prop::array::uniform4(prop::option::of(any::<bool>())),
            named in any::<bool>(),
        ) {
            let [of_model, of_transport, of_request, of_hand] = said;
            let mut config = model(of_model);
            config.policy =
                Transports::of([("mine", TransportPolicy::of(says(of_transport), SpeculationOverride::default()))]);
            let transport = named.then_some("mine");
            let found = resolve(&config, transport, says(of_request), says(of_hand)).enabled;
            let forbidden = [of_model, of_request, of_hand].contains(&Some(false));
            let asked = of_hand.or(of_request).or(of_transport.filter(|_| named)).or(of_model);
            prop_assert_eq!(found.value, !forbidden && asked == Some(true));
            prop_assert_eq!(found.set_by == SetBy::Default, asked.is_none());
        }
    }
}

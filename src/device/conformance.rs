//! What every arithmetic device must do, written once against [`Device`] and run by each device's tests.
//!
//! Weights are random integers and scales, encoded here byte by byte and decoded here in f64, so that nothing of a device under
//! test checks itself. Devices that promise [`Identity::Bitwise`] are held to equal bits by every route; others to closeness.

mod drafting;
mod gating;
mod operations;
mod recurrent;
mod routes;
mod scoring;
mod weights;

pub(crate) use drafting::drafting;
pub(crate) use gating::gating;
pub(crate) use operations::operations;
pub(crate) use recurrent::recurrent;
pub(crate) use routes::{Dims, Route, Toy, routes, trace};
pub(crate) use scoring::scoring;
pub(crate) use weights::Kind;

use super::ops::Device;
use crate::config::Precision;

/// Makes a device of a precision.
pub(crate) type Make<'a, D> = &'a dyn Fn(Precision) -> D;

/// All of it.
pub(crate) fn conforms<D: Device>(make: Make<'_, D>) {
    operations(make);
    gating(make);
    recurrent(make);
    routes(make);
    scoring(make);
    drafting(make);
}

/// Root-mean-square difference as a share of the root mean square of `expected`.
pub(crate) fn relative_error(actual: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let square = |x: f64| x * x;
    let difference: f64 = actual.iter().zip(expected).map(|(a, e)| square(f64::from(*a) - e)).sum();
    let norm: f64 = expected.iter().map(|e| square(*e)).sum();
    (difference / norm.max(f64::MIN_POSITIVE)).sqrt()
}

//! The device as a whole: the conformance suite. In f32, where nothing hides behind rounding; models run in their own floats too.

use super::*;
use crate::device::conformance;

#[test]
fn it_conforms() {
    conformance::conforms(&|_| Mlx::new(Floats::F32, &MlxConfig::default()).unwrap());
}

//! From MLX's errors to the device's.

use mlx_rs::error::Exception;

use crate::device::DeviceError;

/// What building or evaluating a graph gives.
pub(super) type Built<T> = Result<T, Exception>;

/// The text of MLX's errors when an allocation is refused, on the CPU and on Metal.
const REFUSED: [&str; 3] = ["[malloc", "[metal::malloc", "Unable to allocate"];

/// The text when the GPU gave up in the middle of its work. Which arrays it had written is not known then.
const GAVE_UP: &str = "Command buffer execution failed";

/// MLX's error as the device's; `doing` says during what.
pub(super) fn device_error(error: &Exception, doing: &str) -> DeviceError {
    let what = error.what();
    if what.contains(GAVE_UP) {
        return DeviceError::StateLost(format!("{doing}: {what}"));
    }
    if REFUSED.iter().any(|text| what.contains(text)) {
        return DeviceError::OutOfMemory { bytes: asked_for(what), problem: format!("{doing}: {what}") };
    }
    DeviceError::Contract(format!("{doing}: {what}"))
}

/// The number in "allocate 1234 bytes", 0 where there is none: a limit on buffers is told in their number.
fn asked_for(what: &str) -> u64 {
    let number = what.split("allocate ").nth(1).and_then(|rest| rest.split_once(" bytes"));
    number.and_then(|(number, _)| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_allocation_is_told_from_a_broken_contract() {
        for text in [
            "[malloc] Unable to allocate 4398046511104 bytes.",
            "[metal::malloc] Attempting to allocate 4398046511104 bytes which is greater than the maximum allowed buffer size of 17179869184 bytes.",
        ] {
            match device_error(&Exception::custom(text), "prefill") {
                DeviceError::OutOfMemory { bytes, problem } => {
                    assert_eq!(bytes, 4_398_046_511_104);
                    assert!(problem.starts_with("prefill: ["), "{problem}");
                }
                other => panic!("{other}"),
            }
        }
        let limit =
            device_error(&Exception::custom("[metal::malloc] Resource limit (499000) exceeded."), "decode");
        assert!(matches!(limit, DeviceError::OutOfMemory { bytes: 0, .. }), "{limit}");
        assert!(limit.to_string().starts_with("the device cannot hold more: "), "{limit}");
        let text = "[METAL] Command buffer execution failed: Insufficient Memory \
                    (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory).";
        let gone = device_error(&Exception::custom(text), "decode");
        assert!(matches!(gone, DeviceError::StateLost(_)), "{gone}");
        let other = device_error(&Exception::custom("[matmul] Last dimension of first input"), "decode");
        assert!(matches!(other, DeviceError::Contract(_)), "{other}");
    }
}

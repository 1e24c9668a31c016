//! From MLX's errors to the device's.

use mlx_rs::error::Exception;

use crate::device::DeviceError;

/// What building or evaluating a graph gives.
pub(super) type Built<T> = Result<T, Exception>;

/// The text of MLX's errors when an allocation fails: on the CPU, on Metal for a buffer larger than the device allows, and from a
/// command buffer that found no memory.
const NO_MEMORY: [&str; 4] = ["[malloc", "metal::malloc", "Unable to allocate", "Insufficient Memory"];

/// MLX's error as the device's; `doing` says during what.
pub(super) fn device_error(error: &Exception, doing: &str) -> DeviceError {
    let what = error.what();
    if NO_MEMORY.iter().any(|text| what.contains(text)) {
        // The largest number in the message is the size of the buffer that was refused.
        let numbers = what.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<u64>().ok());
        let bytes = numbers.max().unwrap_or(0);
        return DeviceError::OutOfMemory { bytes, problem: format!("{doing}: {what}") };
    }
    DeviceError::Contract(format!("{doing}: {what}"))
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
        let other = device_error(&Exception::custom("[matmul] Last dimension of first input"), "decode");
        assert!(matches!(other, DeviceError::Contract(_)), "{other}");
    }
}

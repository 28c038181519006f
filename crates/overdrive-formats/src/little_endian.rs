//! Whole numbers as files store them, the lowest byte first.

/// The number in these bytes, at most 8.
pub(crate) fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

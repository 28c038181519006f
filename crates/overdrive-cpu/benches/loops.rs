//! Fused loops beside the stream bandwidth of the same bytes.
fn main() {}

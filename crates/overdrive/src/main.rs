//! Parses, wires, prints.
fn main() {}

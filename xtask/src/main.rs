//! Every automation of the project.
fn main() {}

//! How much `cargo xtask check` runs, and the features that each extent compiles.
//!
//! The file is apart from the check, because steps of the check need it too.

/// How much of the check to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All of it: what decides.
    Full,
    /// Without the docs and the patches: for the loop while one works.
    Quick,
}

/// The whole workspace; in full with the engine that the default build leaves out. Steps that
/// compile name the same, so that each finds what the one before it has built.
pub(crate) fn features(extent: Extent) -> &'static [&'static str] {
    match extent {
        Extent::Full => &["--workspace", "--features", "overdrive-foreign/tract"],
        Extent::Quick => &["--workspace"],
    }
}

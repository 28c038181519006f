//! `Level`: how often a register of a loop is computed.

/// How often a register is computed.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Level {
    Kernel,
    Row,
    Element,
}

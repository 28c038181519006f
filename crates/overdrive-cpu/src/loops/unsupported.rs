//! The one error of this module: a program that loops cannot execute.

/// Why a program cannot be a loop; the step needs another kernel or a cast.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("loops cannot do {reason}")]
pub struct Unsupported {
    /// The missing feature, and how to get around it where there is a way.
    pub reason: String,
}

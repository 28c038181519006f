//! Placeholder, replaced by the next commits.

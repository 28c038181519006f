//! Helpers of several tests.
#![allow(dead_code, clippy::unwrap_used)] // Each test binary uses its part; a test may unwrap.

mod tiny;

pub(crate) use tiny::*;

//! Running graphs on the back end and comparing with the reference evaluator.
#![allow(dead_code, clippy::unwrap_used)] // Each test binary uses its part; a test may unwrap.

pub(crate) mod models;
mod session;

pub(crate) use session::*;

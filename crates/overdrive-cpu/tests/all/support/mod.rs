//! Running graphs on the back end and comparing with the reference evaluator.

pub(crate) mod models;
mod session;

pub(crate) use session::*;

//! The tests of tests: the harness of ops, formulas and plans.
//!
//! One program for all files, since each program links the whole workspace.

#![allow(clippy::unwrap_used)] // A test may unwrap, its helpers too.

mod check_backend;
mod formulas;
mod op_harness;
mod plans;
mod prims;

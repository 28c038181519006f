//! Sequences that are decoded token by token.
//!
//! One program for all files, since each program links the whole workspace.

#![allow(clippy::unwrap_used)] // A test may unwrap, its helpers too.

mod batch;
mod cached;
mod coded_caches;
mod likeliest;
mod pages;
mod speculation;
#[path = "../../../overdrive-studies/tests/all/tiny.rs"]
mod tiny;

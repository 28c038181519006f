//! Graphs, their text, plans and the f64 definition.
//!
//! One program for all files, since each program links the whole workspace.

#![allow(clippy::unwrap_used)] // A test may unwrap, its helpers too.

mod attention;
mod attention_threshold;
mod builder;
mod codes;
mod collectives;
mod float8;
mod gradients;
mod plan;
mod text;
mod timeline;

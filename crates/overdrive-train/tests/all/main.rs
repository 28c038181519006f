//! Training: data, recipes, steps and ranks.
//!
//! One program for all files, since each program links the whole workspace.

#![allow(clippy::unwrap_used)] // A test may unwrap, its helpers too.

mod advice;
mod data;
mod distil_gate;
mod evaluation;
mod float8;
mod initial;
mod loss;
mod moments;
mod muon;
mod parameters;
mod quantize_aware;
mod ranks;
mod recipes;
mod resumed;
mod texts;
mod tokens;
mod trained;
mod training;

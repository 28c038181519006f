//! `cargo xtask tidy`: the rules of STYLE.md that a machine can check, one file per rule.
//!
//! A rule is a pure function from a [`Tree`](tree::Tree) to findings, so that each is tested
//! against a tree that breaks it.

mod architecture;
mod book;
mod circles;
mod clauses;
mod columns;
mod declarations;
mod files;
mod header;
mod imports;
mod layers;
mod manifest;
mod names;
mod openings;
mod prints;
mod programs;
mod prose;
mod purity;
mod rule;
mod run;
mod sentences;
mod size;
mod tree;
mod unsafety;
mod words;

pub(crate) use run::run;

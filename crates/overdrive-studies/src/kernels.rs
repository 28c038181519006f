//! Single kernels against their bounds. Products stand against the best library, fused kernels
//! against unfused, memory-bound kernels against a copy of the same bytes. A whole transformer
//! stands against its products alone.
//!
//! Each case is a small graph through the whole stack, in one session with what it is held against.

mod accelerator;
mod case;
pub(crate) mod graphs;
mod host;
mod peers;

use crate::{Context, Study};
use case::NAME;
use overdrive_bench::results::{Note, Results};

/// The study.
pub(crate) struct Kernels;

impl Study for Kernels {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "matmul, linear+GELU, softmax, norms, attention, an elementwise chain: each against its \
         bound"
    }

    fn quick_seconds(&self) -> u64 {
        75
    }

    fn run(&self, context: &Context<'_>, results: &mut Results) {
        let cases = match context.device().is_accelerator() {
            true => &accelerator::CASES,
            false => &host::CASES,
        };
        for &(name, case) in cases {
            if let Some(reason) = context.sampling.over() {
                results.notes.push(Note {
                    study: NAME.to_owned(),
                    text: format!("{name}: skipped, {reason}"),
                });
                continue;
            }
            context.journal.progress.workload(name);
            if let Err(error) = case(context, results) {
                results
                    .notes
                    .push(Note { study: NAME.to_owned(), text: format!("{name}: {error}") });
            }
        }
    }
}

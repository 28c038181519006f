//! A measured ladder from eager f32 on one thread to the fastest that the device has. It has one
//! workload and one change a step, and every step runs in one session.

use crate::{Context, Entry, Study, Workload, measure};
use overdrive_bench::ladder::{LadderKey, Rung};
use overdrive_bench::results::{Note, Results};
use overdrive_ir::{DType, Mode};
use overdrive_passes::{Recipe, precision};
use std::collections::BTreeMap;

/// The study.
pub(crate) struct Cumulative;

impl Study for Cumulative {
    fn name(&self) -> &'static str {
        "cumulative"
    }

    fn summary(&self) -> &'static str {
        "a ladder on one transformer: eager, jit, compile, threads, bf16"
    }

    fn quick_seconds(&self) -> u64 {
        20
    }

    fn run(&self, context: &Context<'_>, results: &mut Results) {
        let name = context.quick_or("quick-inference", "transformer");
        context.journal.progress.workload(name);
        let note = |text: String| Note { study: "cumulative".to_owned(), text };
        if let Some(reason) = context.sampling.over() {
            return results.notes.push(note(format!("skipped, {reason}")));
        }
        let model = overdrive_models::find(name).expect("a built-in model");
        let workload = match Workload::of_model(model, &BTreeMap::new()) {
            Ok(workload) => workload,
            Err(error) => return results.notes.push(note(error.to_string())),
        };
        let (single, all) = (context.single(), context.device());
        let mut changes = vec![
            format!("eager, f32{}", if all.is_accelerator() { "" } else { ", one thread" }),
            "jit".into(),
            "compile".into(),
        ];
        let mut entries: Vec<Entry<'_>> = [Mode::Eager, Mode::Jit, Mode::Compile]
            .map(|mode| Entry::plain(&workload, single, mode))
            .into();
        if all.threads > 1 {
            changes.push(format!("{} threads", all.threads));
            entries.push(Entry::plain(&workload, all, Mode::Compile));
        } else if !all.is_accelerator() {
            results.notes.push(note("one thread was asked for: no step for threads".to_owned()));
        }
        let fastest = if all.is_accelerator() { Mode::Graph } else { Mode::Compile };
        if fastest == Mode::Graph {
            changes.push("captured and replayed".to_owned());
            entries.push(Entry::plain(&workload, all, fastest));
        }
        if all.backend.description().contraction_dtypes.contains(&DType::BF16) {
            match precision(&workload.graph, &Recipe { contractions: DType::BF16 }) {
                Ok(graph) => {
                    changes.push("bf16 contractions".to_owned());
                    let entry = Entry::plain(&workload, all, fastest);
                    entries.push(Entry { graph, dtype: DType::BF16, ..entry });
                }
                Err(error) => results.notes.push(note(error.to_string())),
            }
        } else {
            results
                .notes
                .push(note(format!("{} has no native bf16 contraction", all.backend.name())));
        }
        let title = format!("{name}, from {} to the fastest", changes[0]);
        let cases = entries.iter().map(|entry| entry.case(self.name()).id());
        let rungs =
            changes.into_iter().zip(cases).map(|(change, case)| Rung { change, case }).collect();
        let records = measure(context, self.name(), &entries, &mut []);
        if records.is_empty() {
            return;
        }
        context.add(results, records);
        results.ladders.push(LadderKey { title, rungs });
    }
}

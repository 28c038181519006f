//! Four bits that are learnt against four bits that are only calibrated. The example shows what
//! each loses against the float model that it came from, paired over held-out samples, folds and
//! seeds. It also shows how much of the loss of rounding to nearest each makes good.
//!
//! The last row of each model is the float model after the same further training. It shows how much
//! of a gain is owed to training alone.
//!
//! `cargo run --release -p overdrive-studies --example learned -- digits-mlp [folds] [seeds]`

use overdrive_cpu::CpuBackend;
use overdrive_ir::{Backend, Graph, Init};
use overdrive_passes::QuantizationMode;
use overdrive_studies::quantization::{Estimate, Metric, Scores, Task, Trial};
use overdrive_train::data::{Parts, open};
use overdrive_train::{Fit, Recipe, Sharing, fit, tuning_of};
use std::time::Instant;

/// Modes of each number format, the one that rounds to nearest first.
const FORMATS: [&[&str]; 2] =
    [&["int4-rtn", "int4-gptq", "int4-awq", "int4-hqq", "qat-int4"], &["mxfp4", "qat-mxfp4"]];

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "digits-mlp".to_owned());
    let mut count = |otherwise: u64| arguments.next().map_or(Ok(otherwise), |text| text.parse());
    let (folds, seeds) = (count(5)?, count(3)?);
    let model = overdrive_models::find(&name)?;
    let metric = if model.vocabulary.is_some() { Metric::Perplexity } else { Metric::Top1 };
    let backend = CpuBackend::new(None)?;
    let modes: Vec<&str> = FORMATS.concat();
    let mut found: Vec<Vec<Scores>> = vec![Vec::new(); modes.len() + 2];
    for fold in 0..folds as usize {
        for seed in 1..=seeds {
            let trial = Trial { fold, seed };
            let task = Task::trained(&backend, model, trial, [4, 32]).map_err(|f| f.reason)?;
            let start = Instant::now();
            let mut judge = |at: usize, graph: &Graph| -> Result<(), Failed> {
                let evaluation = task.evaluate(&backend, graph).map_err(|f| f.reason)?;
                found[at].push(metric.scores(fold, &evaluation));
                Ok(())
            };
            judge(0, &task.template.graph)?;
            for (at, mode) in modes.iter().enumerate() {
                let mode = QuantizationMode::find(mode).ok_or("a mode of the list")?;
                judge(at + 1, &task.apply(&backend, mode).map_err(|f| f.reason)?.graph)?;
            }
            let data = open(if model.vocabulary.is_some() { "text" } else { "digits" })?;
            let parts = data.parts(&task.template.graph, fold)?;
            judge(modes.len() + 1, &tuned(&backend, &task, &parts, seed)?)?;
            eprintln!("{name}, fold {fold}, seed {seed}: {:.1} s", start.elapsed().as_secs_f64());
        }
    }
    let unit = metric.unit_of_loss();
    let said = |e: Estimate| format!("{:.3} [{:.3}, {:.3}]", e.value, e.low, e.high);
    println!("{name}: {} {}", metric.quantity(), said(metric.of(&found[0])));
    let lost = |at: usize| metric.loss(&found[0], &found[at]);
    let mut at = 1;
    for format in FORMATS {
        let nearest = lost(at);
        for mode in format {
            let own = lost(at);
            let good = 100.0 * (1.0 - own.value / nearest.value);
            let good = if nearest.is_positive() {
                format!("{good:.0} %")
            } else {
                "not judged".to_owned()
            };
            println!(
                "{mode}: {} {unit} lost; of {}'s loss made good: {good}",
                said(own),
                format[0]
            );
            at += 1;
        }
    }
    println!("f32 trained further: {} {unit} lost", said(lost(at)));
    // Against the best that is only calibrated, sample by sample.
    let mut first = 1;
    for format in FORMATS {
        let calibrated = first..first + format.len() - 1;
        let best =
            calibrated.min_by(|&a, &b| lost(a).value.total_cmp(&lost(b).value)).ok_or("a mode")?;
        let learnt = first + format.len() - 1;
        let against = metric.loss(&found[best], &found[learnt]);
        println!(
            "{} against {}: {} {unit} lost",
            modes[learnt - 1],
            modes[best - 1],
            said(against)
        );
        first += format.len();
    }
    Ok(())
}

/// The float model after the training that learns to be quantized, without quantization.
fn tuned(backend: &dyn Backend, task: &Task, parts: &Parts, seed: u64) -> Result<Graph, Failed> {
    let recipe = Recipe { seed, ..tuning_of(&task.template.name) };
    let run = Fit {
        backend,
        model: &task.template.graph,
        recipe: &recipe,
        train: parts.train.as_ref(),
        validation: &parts.validation,
        resume: None,
        checkpoint: None,
        memory_limit: None,
        ranks: None,
        sharing: Sharing::default(),
    };
    let parameters = fit(&run, &mut ())?.parameters;
    Ok(task
        .template
        .graph
        .clone()
        .with_initial_values(|name, _| Init::Value(parameters[name].clone())))
}

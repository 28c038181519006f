//! Trains one of the models that the repository carries trained, writes it as a model folder, and
//! prints what it scores on the test samples.
//!
//! `cargo run --release -p overdrive-train --example trained -- digits-mlp
//! crates/overdrive-train/trained/digits-mlp`

use overdrive_cpu::CpuBackend;
use overdrive_formats::{ModelConfig, ModelFolder};
use overdrive_ir::Init;
use overdrive_train::{
    Evaluation, Fit, Observer, Sharing, StepReport, data, evaluate, fit, recipe_of,
};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

/// Prints the loss now and then.
struct Log(Instant);

impl Observer for Log {
    fn stepped(&mut self, report: &StepReport) -> ControlFlow<()> {
        if report.step.is_multiple_of(50) {
            println!(
                "step {}: loss {:.4}, {:.1} s",
                report.step,
                report.loss,
                self.0.elapsed().as_secs_f64()
            );
        }
        ControlFlow::Continue(())
    }

    fn evaluated(&mut self, done: u64, evaluation: &Evaluation) {
        println!("step {done}: validation loss {:.4}", evaluation.loss());
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, folder, steps @ ..] = &arguments[..] else {
        return Err("expected a model, a folder, and at most a number of steps".into());
    };
    let built_in = overdrive_models::find(name)?;
    let model = (built_in.build)()?;
    let backend = CpuBackend::new(None)?;
    let mut recipe = recipe_of(name);
    if let Some(steps) = steps.first() {
        recipe.steps = steps.parse()?;
    }
    let source = if built_in.vocabulary.is_some() { "text" } else { "digits" };
    let parts = data::open(source)?.parts(&model, 0)?;
    let run = Fit {
        backend: &backend,
        model: &model,
        recipe: &recipe,
        train: parts.train.as_ref(),
        validation: &parts.validation,
        resume: None,
        checkpoint: None,
        memory_limit: None,
        ranks: None,
        sharing: Sharing::default(),
    };
    let start = Instant::now();
    let fitted = fit(&run, &mut Log(start))?;
    let seconds = start.elapsed().as_secs_f64();
    let forward = overdrive_passes::bind(&model, &[("batch".to_owned(), recipe.batch)].into())?;
    let test = evaluate(&backend, &forward, &fitted.parameters, parts.test.as_ref())?;
    let figure = match test.bits_per_byte() {
        Some(bits) => format!("{bits:.4} bits per byte"),
        None => format!("{:.2} %", 100.0 * test.accuracy()),
    };
    println!(
        "{name}: {figure} on test samples after {} steps in {seconds:.1} s",
        fitted.progress.done
    );
    let training = serde_json::to_value(&recipe)?;
    let splits = [&parts.train, &parts.validation, &parts.test].map(|part| part.hash());
    let splits = splits.into_iter().collect::<Result<Vec<_>, _>>()?;
    let config = ModelConfig {
        name: name.clone(),
        dimensions: built_in
            .dimensions
            .iter()
            .map(|&(name, size)| (name.to_owned(), size))
            .collect(),
        vocabulary: built_in.vocabulary,
        columns: None,
        recipe: [
            ("data", source.into()),
            ("splits_sha256", splits.into()),
            ("training", training),
            ("test", figure.into()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into(),
    };
    let graph = model.with_initial_values(|name, _| Init::Value(fitted.parameters[name].clone()));
    ModelFolder { config, graph }.write(Path::new(folder))?;
    Ok(())
}

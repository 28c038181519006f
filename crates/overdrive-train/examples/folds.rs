//! Trains a model on each of the five folds of the digits and prints the accuracy on the fold's
//! test samples.
//!
//! `cargo run --release -p overdrive-train --example folds -- digits-mlp [seed]`

use overdrive_cpu::CpuBackend;
use overdrive_train::data::{Dataset, FOLDS, digits};
use overdrive_train::{Fit, Observer, Sharing, evaluate, fit};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "digits-mlp".to_owned());
    let seed = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let model = (overdrive_models::find(&name)?.build)()?;
    let backend = CpuBackend::new(None)?;
    let mut recipe = overdrive_train::recipe_of(&name);
    recipe.seed = seed;
    let forward = overdrive_passes::bind(&model, &[("batch".to_owned(), recipe.batch)].into())?;
    let (mut hits, mut count) = (0.0, 0);
    for fold in 0..FOLDS {
        let parts = Dataset::Samples(digits()).parts(&model, fold)?;
        let start = Instant::now();
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
        let fitted = fit(&run, &mut () as &mut dyn Observer)?;
        let seconds = start.elapsed().as_secs_f64();
        let test = evaluate(&backend, &forward, &fitted.parameters, parts.test.as_ref())?;
        println!(
            "fold {fold}: {:.2} % of {} test samples, validation loss {:.4}, {} steps in \
             {seconds:.2} s",
            100.0 * test.accuracy(),
            test.hits.len(),
            fitted.progress.best_loss,
            fitted.progress.done,
        );
        hits += test.hits.iter().map(|&n| f64::from(n)).sum::<f64>();
        count += test.hits.len();
    }
    println!("{name}, seed {seed}: {:.2} % of all {count} samples", 100.0 * hits / count as f64);
    Ok(())
}

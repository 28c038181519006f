//! Advice for a run that needs too much memory: it fits, and takes what is said.

use overdrive_cpu::CpuBackend;
use overdrive_ir::backend::MemoryReport;
use overdrive_ir::plan::Space;
use overdrive_ir::{Graph, Init, Plan};
use overdrive_models::Span;
use overdrive_models::llama::Llama;
use overdrive_passes::Lora;
use overdrive_train::data::{Dataset, Parts, open};
use overdrive_train::{
    Fit, Moments, Observer, Recipe, StepReport, fit, initial_parameters, recipe_of,
};
use std::ops::ControlFlow;

/// Ends a run at its first step, and keeps what its plan takes.
#[derive(Default)]
struct Planned(u64);

impl Observer for Planned {
    fn planned(&mut self, plan: &Plan, _: &MemoryReport, _: u64) {
        self.0 = plan.peak_bytes(Space::MAIN);
    }

    fn stepped(&mut self, _: &StepReport) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}

/// A model of text that has learnt, and what it would learn from.
fn task() -> (Graph, Parts) {
    let sizes = Llama { layers: 2, ..Llama::plain(256, [128, 256], 32) };
    let model = sizes.build(Span::Fixed(64)).unwrap();
    let initial = initial_parameters(&model, 1);
    let model = model.with_initial_values(|name, _| Init::Value(initial[name].clone()));
    let data: Dataset = open("text").unwrap();
    let parts = data.parts(&model, 0).unwrap();
    (model, parts)
}

/// Bytes of the plan of a run, or why there is none.
fn planned((model, parts): &(Graph, Parts), recipe: &Recipe, limit: u64) -> Result<u64, String> {
    let backend = CpuBackend::new(Some(1)).unwrap();
    let run = Fit { memory_limit: Some(limit), ..Fit::anew((&backend, model), recipe, parts) };
    let mut found = Planned::default();
    fit(&run, &mut found).map(|_| found.0).map_err(|error| error.to_string())
}

/// The number behind some words.
fn number(text: &str, words: &str) -> u64 {
    let (_, rest) = text.split_once(words).unwrap_or_else(|| panic!("{words}: {text}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// The recipe with these options of `train`.
fn with(recipe: &Recipe, options: &str) -> Recipe {
    let mut recipe = recipe.clone();
    let words: Vec<&str> = options.split_whitespace().collect();
    for pair in words.chunks(2) {
        let size = || pair[1].parse().unwrap();
        match pair[0] {
            "--batch" => recipe.batch = size(),
            "--accumulate" => recipe.accumulate = size(),
            "--lora" => recipe.lora = Some(Lora { rank: size(), alpha: 2.0 * size() as f64 }),
            "--moments" if pair[1] == "bf16" => recipe.moments = Moments::Bf16,
            "--moments" if pair[1] == "fp8" => recipe.moments = Moments::Fp8,
            other => panic!("{other}: {options}"),
        }
    }
    recipe
}

#[test]
fn advised_options_fit_and_take_the_bytes_that_are_said() {
    let task = task();
    let recipe = Recipe { batch: 4, ..recipe_of("text-transformer") };
    let hopeless = planned(&task, &recipe, 1024).unwrap_err();
    let all = "it does not even fit with --moments fp8 --batch 1 --lora 8";
    assert!(hopeless.contains(all), "{hopeless}");
    let refused = planned(&task, &recipe, 7_000_000).unwrap_err();
    let limit = number(&refused, "at least ") - 1;
    let refused = planned(&task, &recipe, limit).unwrap_err();
    let (_, advice) = refused.split_once("it fits with ").unwrap_or_else(|| panic!("{refused}"));
    let mut kinds = Vec::new();
    for one in advice.split(", or with ") {
        let (options, said) = one.split_once(" (").unwrap();
        let said = number(said, "");
        assert!(said <= limit, "{refused}");
        let other = with(&recipe, options);
        let found = planned(&task, &other, limit).unwrap_or_else(|error| panic!("{one}: {error}"));
        let is_same = other.accumulate == 1;
        assert!(if is_same { found == said } else { found <= said }, "{one}: {found}");
        assert!(is_same || other.batch * other.accumulate == recipe.batch, "{one}");
        kinds.push(options.split(' ').next().unwrap());
    }
    for kind in ["--batch", "--moments", "--lora"] {
        assert!(kinds.contains(&kind), "{refused}");
    }
}

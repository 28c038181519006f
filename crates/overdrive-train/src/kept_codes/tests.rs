//! Codes that are kept give the bits of codes that each batch makes, and no batch reads weights for
//! them.

use super::*;
use crate::compiled::Compiled;
use crate::data::{Dataset, digits};
use crate::step::{Role, graph_of};
use crate::{Formats, Recipe, batches, parameters, with_loss};
use overdrive_cpu::CpuBackend;
use overdrive_ir::plan::{Plan, SlotPlace};
use overdrive_ir::{Backend, DType, State, Tensor, Tuning};
use overdrive_passes::bind;

/// Layers of digits-mlp on codes.
const WEIGHTS: [&str; 2] = ["fc1.weight", "fc2.weight"];

/// Weights of layers on codes that a step of a plan reads.
fn read(plan: &Plan) -> Vec<&str> {
    let reads = plan.steps.iter().flat_map(|step| &step.reads);
    let states = reads.filter_map(|slot| match &plan.slot(*slot).place {
        SlotPlace::State(name) => Some(name.as_str()),
        _ => None,
    });
    states.filter(|name| WEIGHTS.contains(name)).collect()
}

#[test]
fn updates_are_bit_for_bit_those_of_casts_in_each_batch() {
    let model = (overdrive_models::find("digits-mlp").unwrap().build)().unwrap();
    let parts = Dataset::Samples(digits()).parts(&model, 0).unwrap();
    for name in ["fp8", "fp8-current", "fp8-rows", "fp8-blocks", "fp8-mx"] {
        let recipe = Recipe { batch: 32, accumulate: 3, ..Recipe::default() };
        let recipe = recipe.in_formats(Formats::named(name).unwrap().clone());
        let bound = bind(&model, &[("batch".to_owned(), recipe.batch)].into()).unwrap();
        let forward = with_loss(&bound, parts.train.target()).unwrap();
        let names: Vec<String> =
            parameters(&forward, &recipe).map(|(name, _)| name.to_owned()).collect();
        let [earlier, last] =
            [Role::Accumulate, Role::Update].map(|role| graph_of(&forward, &recipe, role).unwrap());
        let [kept_earlier, kept_last] = [&earlier, &last].map(|graph| kept(graph, &names).unwrap());
        let backend = CpuBackend::new(Some(1)).unwrap();
        let run = |[earlier, last]: [&Graph; 2], make: Option<&Graph>| {
            let compiled =
                |graph: &Graph| Compiled::new(&backend, graph.clone(), &Tuning::default()).unwrap();
            let (mut earlier, mut last) = (compiled(earlier), compiled(last));
            let mut state = State::initial(last.graph(), &backend).unwrap();
            if let Some(make) = make {
                compiled(make).run(&backend, &mut state, &[]).unwrap();
            }
            let mut told = vec![];
            for step in 0..12 {
                let lr = Tensor::scalar(DType::F32, 1e-2);
                for (at, batch) in
                    batches(parts.train.as_ref(), &recipe, step).unwrap().iter().enumerate()
                {
                    let given = [("x", &batch.x), ("labels", &batch.labels), ("lr", &lr)];
                    let graph = if at == 2 { &mut last } else { &mut earlier };
                    told.extend(graph.run(&backend, &mut state, &given).unwrap());
                }
            }
            let of = |name: &String| backend.download(&state.buffers[name]).unwrap();
            (told, names.iter().map(of).collect::<Vec<Tensor>>(), read(earlier.plan()).len())
        };
        let (told, weights, casts) = run([&earlier, &last], None);
        let graphs = [&kept_earlier.graph, &kept_last.graph];
        let (kept_told, kept_weights, kept_casts) = run(graphs, Some(&kept_last.make));
        assert!(told == kept_told && weights == kept_weights, "{name}");
        assert!(casts >= WEIGHTS.len() && kept_casts == 0, "{name}: {casts} and {kept_casts}");
        let first = told[0].to_f64()[0];
        let end = told[told.len() - 3].to_f64()[0];
        assert!(end < 0.7 * first, "{name} learns: {first} to {end}");
    }
}

//! Training with quantized weights. Its forward values are those of the quantized model, and it
//! recovers the loss of rounding.

use overdrive_cpu::CpuBackend;
use overdrive_formats::Tensors;
use overdrive_ir::eval::philox;
use overdrive_ir::{Backend, Graph, Init, Mode, State, Tensor, Tuning};
use overdrive_passes::{
    Evidence, MODES, QuantizationMode, Statistic, bind, learn, observe, quantize,
};
use overdrive_train::data::{Dataset, Parts, digits};
use overdrive_train::{
    Evaluation, Fit, Sharing, evaluate, initial_parameters, quantize_aware, trained, tuning_of,
};

const BATCH: usize = 64;

fn backend() -> CpuBackend {
    CpuBackend::new(Some(1)).unwrap()
}

/// A built-in model of digits with the weights that come with the program.
fn model(name: &str) -> Graph {
    let weights = trained(name).unwrap();
    let graph = (overdrive_models::find(name).unwrap().build)().unwrap();
    graph.with_initial_values(|name, _| Init::Value(weights[name].clone()))
}

fn parts(graph: &Graph) -> Parts {
    Dataset::Samples(digits()).parts(graph, 0).unwrap()
}

fn bound(graph: &Graph) -> Graph {
    bind(graph, &[("batch".to_owned(), BATCH)].into()).unwrap()
}

fn run(graph: &Graph, x: &Tensor, mode: Mode) -> Vec<u8> {
    let backend = backend();
    let mut session = backend.compile(graph, mode, &Tuning::default()).unwrap().session().unwrap();
    let mut state = State::initial(graph, &backend).unwrap();
    let mut outputs = vec![backend.output(graph.ty(graph.outputs()[0].value)).unwrap()];
    session.run(state.with(&[backend.upload(x).unwrap()], &mut outputs)).unwrap().wait().unwrap();
    backend.download(&outputs[0]).unwrap().bytes().to_vec()
}

fn evidence(graph: &Graph, parts: &Parts, statistics: &[Statistic]) -> Evidence {
    let observed = observe(&bound(graph), statistics).unwrap();
    let batch = parts.train.batch(&(0..BATCH as u64).collect::<Vec<_>>()).unwrap();
    let mut evidence = Evidence::default();
    evidence.add(&observed, &overdrive_ir::eval::eval_tensors(&observed, &[batch.x]));
    evidence
}

fn judged(graph: &Graph, parts: &Parts) -> Evaluation {
    let graph = bound(graph);
    evaluate(&backend(), &graph, &initial_parameters(&graph, 1), parts.test.as_ref()).unwrap()
}

#[test]
fn forward_values_are_those_of_the_quantized_model_bit_for_bit() {
    for name in ["digits-mlp", "digits-conv"] {
        let float = model(name);
        let parts = parts(&float);
        let x = parts.test.batch(&(0..BATCH as u64).collect::<Vec<_>>()).unwrap().x;
        for mode in MODES.iter().filter(|mode| mode.is_trained()) {
            let quantization = mode.quantization();
            let seen = evidence(&float, &parts, &quantization.statistics());
            let learning = learn(&float, &quantization, &seen).unwrap();
            if learning.is_empty() {
                continue;
            }
            // Away from where training begins: other steps, other weights.
            let mut states: Tensors = initial_parameters(&learning.graph, 1);
            for (name, tensor) in &mut states {
                let noise = philox::normals(11, philox::site_of(name)).take(tensor.ty().elements());
                let moved: Vec<f64> =
                    tensor.to_f64().iter().zip(noise).map(|(x, z)| x * (1.0 + 0.03 * z)).collect();
                *tensor = Tensor::from_f64(tensor.ty().dtype, tensor.ty().shape.clone(), &moved);
            }
            let trained =
                learning.graph.clone().with_initial_values(|n, _| Init::Value(states[n].clone()));
            let concluded = learning.conclude(&states).unwrap().graph;
            for execution in [Mode::Compile, Mode::Eager] {
                let [trained, concluded] =
                    [&trained, &concluded].map(|g| run(&bound(g), &x, execution));
                assert!(
                    trained == concluded,
                    "{name}, {}, {execution:?}: other outputs",
                    mode.name
                );
            }
        }
    }
}

#[test]
fn training_gains_what_rounding_to_nearest_lost() {
    let float = model("digits-mlp");
    let parts = parts(&float);
    let mut recipe = tuning_of("digits-mlp");
    recipe.steps = 60;
    let backend = backend();
    for (learnt, nearest) in [("qat-int4", "int4-rtn"), ("qat-mxfp4", "mxfp4")] {
        let find = |name: &str| QuantizationMode::find(name).unwrap().quantization();
        let rounded = quantize(&float, &find(nearest), &Evidence::default()).unwrap();
        let run = Fit {
            backend: &backend,
            model: &float,
            recipe: &recipe,
            train: parts.train.as_ref(),
            validation: &parts.validation,
            resume: None,
            checkpoint: None,
            memory_limit: None,
            ranks: None,
            sharing: Sharing::default(),
        };
        let tuned = quantize_aware(&run, &find(learnt), &Evidence::default(), &mut ()).unwrap();
        assert_eq!(tuned.progress.done, 60);
        let [lost, left] =
            [&rounded.graph, &tuned.quantized.graph].map(|g| judged(g, &parts).loss());
        assert!(left < lost, "{learnt}: {left} nats, {nearest} {lost}");
        // Every layer is in codes of the same size as without training.
        let bytes =
            |q: &overdrive_passes::Quantized| q.layers.iter().map(|l| l.code_bytes).sum::<u64>();
        assert_eq!(bytes(&tuned.quantized), bytes(&rounded));
        assert!(
            tuned.quantized.graph.states().iter().all(|state| !state.name.ends_with("_factor"))
        );
    }
}

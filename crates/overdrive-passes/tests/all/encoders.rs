//! Encoders: a mask function of attention hides their padding, so that no plan stores scores.

use overdrive_ir::eval::{States, eval};
use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::{
    Array, Call, DType, Decline, Described, Description, Graph, Init, Kernel, Mode, Target,
    TensorType, Tuning,
};
use overdrive_models::Activation;
use overdrive_models::bert::{Bert, Kin, Pooling};
use overdrive_passes::{bind, plan, to_f64};
use overdrive_train::data::Target as Learnt;
use overdrive_train::{Optimizer, Recipe, training_step, with_loss};

const KINS: [Kin; 3] =
    [Kin::Bert { segments: 2 }, Kin::Roberta { segments: 1, filling: 1 }, Kin::DistilBert];

/// A classifier of so many rows of so many tokens.
fn classifier(kin: Kin, [batch, tokens]: [usize; 2]) -> Graph {
    let bert = Bert {
        vocabulary: 20,
        positions: 300,
        kin,
        width: 32,
        layers: 2,
        heads: 4,
        hidden: 48,
        activation: Activation::Gelu(Approximation::Erf),
        eps: 1e-5,
        pooling: Pooling::None,
        normalised: false,
        classes: Some(3),
    };
    let sizes = [("batch", batch), ("tokens", tokens)].map(|(name, n)| (name.to_owned(), n));
    let bound = bind(&bert.build().unwrap(), &sizes.into()).unwrap();
    bound.with_initial_values(|_, _| Init::Normal { std: 0.3, seed: 3 })
}

fn training(graph: &Graph) -> Graph {
    let optimizer = Optimizer::Adamw { betas: [0.9, 0.99], eps: 1e-2, weight_decay: 0.01 };
    let recipe = Recipe { optimizer, ..Recipe::default() };
    training_step(&with_loss(graph, Learnt::Classes).unwrap(), &recipe).unwrap()
}

/// A device with kernels for attention and its gradients.
fn device() -> impl Target {
    let answer = |call: &Call<'_>| match call {
        Call::Op { op, .. } if op.name().starts_with("attention") => Ok(Kernel::default()),
        _ => Err(Decline::NoKernel),
    };
    let description = Description {
        contraction_dtypes: [DType::F32].into(),
        loop_dtypes: DType::ALL.into(),
        ..Description::default()
    };
    Described { description, answer }
}

#[test]
fn a_training_plan_stores_no_scores() {
    let tokens = 256;
    for kin in KINS {
        let graph = training(&classifier(kin, [1, tokens]));
        let plan = plan(&graph, Mode::Compile, &device(), &Tuning::default()).unwrap();
        let largest = plan.slots.iter().map(|slot| slot.ty.elements()).max().unwrap();
        assert!(largest < tokens * tokens, "{kin:?}, {largest}: {plan}");
        for kernel in ["attention", "attention_grad"] {
            let count = plan.steps.iter().filter(|step| step.name == kernel).count();
            assert_eq!(count, 2, "{kin:?}, {kernel}: {plan}");
        }
    }
}

/// Outputs and states of a graph for ids of four tokens, in rows filled up to so many.
fn numbers(graph: &Graph, tokens: usize) -> Vec<Vec<f64>> {
    let graph = to_f64(graph).unwrap();
    let input = |name: &str, ty: &TensorType| {
        Array::build(ty.dtype, &ty.sizes(), |at| match (name, at) {
            // The rate and the number of the step.
            (_, []) => 1.0,
            ("mask", at) => f64::from(at[1] < 4),
            ("labels", at) => at[0] as f64,
            // Rows of RoBERTa are filled with token 1.
            (_, at) if at[1] < 4 => (5 + 3 * at[0] + 2 * at[1]) as f64,
            _ => 1.0,
        })
    };
    let inputs: Vec<Array> =
        graph.inputs().iter().map(|port| input(&port.name, graph.ty(port.value))).collect();
    assert!(graph.inputs().iter().any(|port| graph.ty(port.value).sizes() == [2, tokens]));
    let mut states = States::new();
    let outputs = eval(&graph, &inputs, &mut states);
    let changed = graph.states().iter().filter(|state| state.update.is_some());
    let found = changed.map(|state| &states[&state.name]);
    outputs.iter().chain(found).map(|x| x.to_tensor().to_f64()).collect()
}

#[test]
fn padding_changes_neither_results_nor_gradients() {
    for kin in KINS {
        for of in [Graph::clone, training] {
            let [short, filled] =
                [4, 7].map(|tokens| numbers(&of(&classifier(kin, [2, tokens])), tokens));
            assert_eq!(short.len(), filled.len());
            for (a, b) in short.iter().flatten().zip(filled.iter().flatten()) {
                assert!((a - b).abs() < 1e-12 * (1.0 + a.abs()), "{kin:?}: {a} and {b}");
            }
        }
    }
}

#[test]
fn a_row_of_padding_alone_has_numbers() {
    let graph = classifier(KINS[0], [2, 5]);
    let row = |seen: f64| Array::build(DType::I32, &[2, 5], |at| seen * (1 - at[0]) as f64);
    let y = eval(&graph, &[row(7.0), row(1.0)], &mut States::new());
    assert!(y[0].floats().iter().all(|x| x.is_finite()), "{y:?}");
}

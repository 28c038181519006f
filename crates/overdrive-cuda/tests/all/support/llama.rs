//! A small Llama that decodes, in a format.

use overdrive_cuda::CudaBackend;
use overdrive_ir::eval::{States, eval};
use overdrive_ir::{Array, Backend, DType, Graph, Init, Mode, State, Tensor, TensorType, Tuning};
use overdrive_models::llama::Llama;
use overdrive_models::{Caches, Pages, Span};
use overdrive_passes::{Recipe, precision, store};
use std::num::NonZeroUsize;

/// Room in the caches: more than a block of attention takes at once.
pub(crate) const CAPACITY: usize = 320;
pub(crate) const LAYERS: usize = 2;

/// The next token of each sequence that the caches hold.
pub(crate) fn step_of(low: DType, caches: Caches) -> Graph {
    let graph = llama().build(Span::Step { caches }).unwrap();
    with_values(in_format(&graph, low), low)
}

pub(crate) fn llama() -> Llama {
    Llama { layers: LAYERS, heads: 8, key_heads: 2, ..Llama::plain(320, [256, 704], 64) }
}

/// Matrices, keys and values in `low`; codes and their scales as they are.
pub(crate) fn in_format(graph: &Graph, low: DType) -> Graph {
    let is_scale = |name: &str| name.ends_with("_scale");
    let chosen = |name: &str, ty: &TensorType| (ty.rank() > 1 && !is_scale(name)).then_some(low);
    precision(&store(graph, &chosen).unwrap(), &Recipe { contractions: low }).unwrap()
}

fn with_values(graph: Graph, low: DType) -> Graph {
    graph.with_initial_values(|name, ty: &TensorType| match ty.rank() {
        2 => {
            let drawn = Init::Normal { std: 0.9 / (ty.sizes()[1] as f64).sqrt(), seed: 3 };
            Init::Value(drawn.tensor(name, &ty.with_dtype(DType::F32)).convert(low))
        }
        1 => Init::Constant(1.25),
        _ => Init::ZEROS,
    })
}

/// Pages of 16 for so many sequences, and the table of each, in no order.
pub(crate) fn shuffled_pages(sequences: usize) -> (Pages, Tensor) {
    let size = NonZeroUsize::new(16).unwrap();
    let pages = Pages { size, count: sequences * CAPACITY.div_ceil(size.get()) };
    // 7 shares no factor with their number, 60 of three sequences.
    let table: Vec<i128> = (0..pages.count as i128).map(|i| 1 + 7 * i % 60).collect();
    (pages, Tensor::from_ints(DType::I32, [sequences, pages.of(CAPACITY)], &table))
}

/// Twelve steps of a decoder, each on what those before it left in the caches: their logits are
/// within `bound` of the definition's. `inputs` are those of a step.
pub(crate) fn steps_agree(
    backend: &CudaBackend,
    (graph, mode): (&Graph, Mode),
    inputs: &dyn Fn(i128) -> Vec<Tensor>,
    (bound, told): (f64, &str),
) {
    let mut session = backend.compile(graph, mode, &Tuning::default()).unwrap().session().unwrap();
    let mut state = State::initial(graph, backend).unwrap();
    let mut states = States::new();
    let mut outputs = vec![backend.output(graph.ty(graph.outputs()[0].value)).unwrap()];
    for step in 0..12 {
        let given = inputs(step);
        let buffers: Vec<_> = given.iter().map(|t| backend.upload(t).unwrap()).collect();
        session.run(state.with(&buffers, &mut outputs)).unwrap().wait().unwrap();
        let arrays: Vec<Array> = given.iter().map(Array::from).collect();
        let expected = eval(graph, &arrays, &mut states).remove(0);
        let found = backend.download(&outputs[0]).unwrap().to_f64();
        let error = distance(&found, expected.floats());
        assert!(error < bound, "{told} {mode:?} {step}: {error:e}");
    }
}

/// `|a - b| / |b|`.
pub(crate) fn distance(a: &[f64], b: &[f64]) -> f64 {
    let norm = |x: f64| x.sqrt();
    let error: f64 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
    norm(error) / norm(b.iter().map(|b| b * b).sum())
}

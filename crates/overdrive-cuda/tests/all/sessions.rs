//! Several sessions of one executable, on as many threads of one GPU.

use crate::support::{gpu, modes};
use overdrive_cuda::CudaBackend;
use overdrive_ir::{
    Backend, Builder, DType, Graph, Init, Session, State, Tensor, TensorType, Tuning,
};
use std::sync::Arc;

const CALLS: usize = 5;

/// `y = x w + count`, and each call adds 1 to `count`.
fn counting() -> Graph {
    let b = Builder::new("counting");
    let x = b.input("x", TensorType::new(DType::F32, [16usize, 256]));
    let w = b.state(
        "w",
        TensorType::new(DType::F32, [256usize, 512]),
        Init::Normal { std: 1.0, seed: 1 },
    );
    let count = b.state("count", TensorType::new(DType::F32, [16usize, 512]), Init::ZEROS);
    b.update("count", count + 1.0);
    b.output("y", x.matmul(w) + count);
    b.finish().unwrap()
}

/// Results of a session's calls on `x`.
fn results(
    backend: &CudaBackend,
    session: &mut dyn Session,
    state: &mut State,
    x: &Tensor,
) -> Vec<Tensor> {
    let inputs = [backend.upload(x).unwrap()];
    let ty = session.plan().slot(session.plan().outputs[0]).ty.clone();
    let mut outputs = [backend.output(&ty).unwrap()];
    let call = |_| {
        session.run(state.with(&inputs, &mut outputs)).unwrap().wait().unwrap();
        backend.download(&outputs[0]).unwrap()
    };
    (0..CALLS).map(call).collect()
}

#[test]
fn sessions_with_shared_weights_give_what_separate_ones_give() {
    let Some(backend) = gpu() else { return };
    let graph = counting();
    let drawn = |seed| Init::Normal { std: 1.0, seed };
    let ty = TensorType::new(DType::F32, [16usize, 256]);
    let xs: Vec<Tensor> = (2..6).map(|seed| drawn(seed).tensor("x", &ty)).collect();
    for mode in modes() {
        let executable = backend.compile(&graph, mode, &Tuning::default()).unwrap();
        let first = State::initial(&graph, &backend).unwrap().share(&graph);
        assert_eq!(first.weights.keys().collect::<Vec<_>>(), ["w"]);
        let alone: Vec<Vec<Tensor>> = xs
            .iter()
            .map(|x| {
                let mut session = Arc::clone(&executable).session().unwrap();
                let mut state = State::initial(&graph, &backend).unwrap();
                results(&backend, &mut *session, &mut state, x)
            })
            .collect();
        let together: Vec<Vec<Tensor>> = std::thread::scope(|scope| {
            let run = |x| {
                let (executable, first) = (Arc::clone(&executable), &first);
                let (graph, backend) = (&graph, &backend);
                scope.spawn(move || {
                    let mut session = executable.session().unwrap();
                    let mut state = first.beside(graph, backend).unwrap();
                    results(backend, &mut *session, &mut state, x)
                })
            };
            let running: Vec<_> = xs.iter().map(run).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (x, (alone, together)) in alone.iter().zip(&together).enumerate() {
            for (call, (alone, together)) in alone.iter().zip(together).enumerate() {
                assert_eq!(alone.bytes(), together.bytes(), "{mode}: input {x}, call {call}");
            }
            assert_ne!(together[0].bytes(), together[1].bytes(), "{mode}: the count goes on");
        }
    }
}

#[test]
fn a_call_changes_nothing_that_sessions_share() {
    let Some(backend) = gpu() else { return };
    let graph = counting();
    for mode in modes() {
        let executable = backend.compile(&graph, mode, &Tuning::default()).unwrap();
        let mut session = executable.session().unwrap();
        let all = State::initial(&graph, &backend).unwrap().buffers;
        let mut state = State { weights: Arc::new(all), ..State::default() };
        let x = Tensor::from_f32([16usize, 256], &[1.0; 16 * 256]);
        let inputs = [backend.upload(&x).unwrap()];
        let ty = session.plan().slot(session.plan().outputs[0]).ty.clone();
        let mut outputs = [backend.output(&ty).unwrap()];
        let error = session.run(state.with(&inputs, &mut outputs)).err().unwrap().to_string();
        assert!(error.contains("state `count`") && error.contains("share"), "{error}");
    }
}

//! Several sessions of one executable, on as many threads.

use crate::support::random;
use overdrive_cpu::CpuBackend;
use overdrive_ir::{Backend, Builder, DType, Graph, Init, Mode, State, Tensor, TensorType, Tuning};
use std::sync::Arc;

/// `y = x w + count`, and each call adds 1 to `count`. The weights are as large as to be packed.
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
    backend: &CpuBackend,
    session: &mut dyn overdrive_ir::Session,
    state: &mut State,
    (x, calls): (&Tensor, usize),
) -> Vec<Tensor> {
    let inputs = [backend.upload(x).unwrap()];
    let ty = session.plan().slot(session.plan().outputs[0]).ty.clone();
    let mut outputs = [backend.output(&ty).unwrap()];
    let call = |_| {
        session.run(state.with(&inputs, &mut outputs)).unwrap().wait().unwrap();
        backend.download(&outputs[0]).unwrap()
    };
    (0..calls).map(call).collect()
}

#[test]
fn sessions_on_many_threads_share_weights_and_keep_what_they_change() {
    let graph = counting();
    for threads in [1, 2] {
        let backend = CpuBackend::new(Some(threads)).unwrap();
        let executable = backend.compile(&graph, Mode::Compile, &Tuning::default()).unwrap();
        let first = State::initial(&graph, &backend).unwrap().share(&graph);
        assert_eq!(first.weights.keys().collect::<Vec<_>>(), ["w"]);
        assert_eq!(first.buffers.keys().collect::<Vec<_>>(), ["count"]);
        let xs: Vec<Tensor> =
            (0..8).map(|seed| random(DType::F32, &[16, 256], seed).to_tensor()).collect();
        let alone: Vec<Vec<Tensor>> = xs
            .iter()
            .map(|x| {
                let mut session = Arc::clone(&executable).session().unwrap();
                let mut state = State::initial(&graph, &backend).unwrap();
                results(&backend, &mut *session, &mut state, (x, 5))
            })
            .collect();
        let together: Vec<Vec<Tensor>> = std::thread::scope(|scope| {
            let run = |x| {
                let (executable, first) = (Arc::clone(&executable), &first);
                let (graph, backend) = (&graph, &backend);
                scope.spawn(move || {
                    let mut session = executable.session().unwrap();
                    let mut state = first.beside(graph, backend).unwrap();
                    results(backend, &mut *session, &mut state, (x, 5))
                })
            };
            let running: Vec<_> = xs.iter().map(run).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (alone, together) in alone.iter().flatten().zip(together.iter().flatten()) {
            assert_eq!(alone.bytes(), together.bytes(), "{threads} threads");
        }
    }
}

#[test]
fn a_session_with_other_weights_neither_finds_nor_spoils_what_was_packed() {
    let graph = counting();
    let backend = CpuBackend::new(Some(1)).unwrap();
    let executable = backend.compile(&graph, Mode::Compile, &Tuning::default()).unwrap();
    let x = random(DType::F32, &[16, 256], 3).to_tensor();
    let mut sessions: Vec<_> = (0..2).map(|_| Arc::clone(&executable).session().unwrap()).collect();
    let mut ours = State::initial(&graph, &backend).unwrap();
    let mut theirs = State::initial(&graph, &backend).unwrap();
    let other = random(DType::F32, &[256, 512], 9).to_tensor();
    backend.write(theirs.buffers.get_mut("w").unwrap(), &other).unwrap();
    let before = results(&backend, &mut *sessions[0], &mut ours, (&x, 1));
    let others = results(&backend, &mut *sessions[1], &mut theirs, (&x, 1));
    assert_ne!(before[0].bytes(), others[0].bytes());
    // The first session again, and the second with the weights of the first.
    backend.write(ours.buffers.get_mut("count").unwrap(), &zeros()).unwrap();
    assert_eq!(results(&backend, &mut *sessions[0], &mut ours, (&x, 1))[0], before[0]);
    backend.write(ours.buffers.get_mut("count").unwrap(), &zeros()).unwrap();
    assert_eq!(results(&backend, &mut *sessions[1], &mut ours, (&x, 1))[0], before[0]);
    // Weights that change where they are.
    backend.write(ours.buffers.get_mut("w").unwrap(), &other).unwrap();
    backend.write(ours.buffers.get_mut("count").unwrap(), &zeros()).unwrap();
    assert_eq!(results(&backend, &mut *sessions[0], &mut ours, (&x, 1))[0], others[0]);
}

fn zeros() -> Tensor {
    Tensor::from_f32([16usize, 512], &[0.0; 16 * 512])
}

#[test]
fn a_call_changes_nothing_that_sessions_share() {
    let graph = counting();
    let backend = CpuBackend::new(Some(1)).unwrap();
    let executable = backend.compile(&graph, Mode::Compile, &Tuning::default()).unwrap();
    let mut session = executable.session().unwrap();
    let all = State::initial(&graph, &backend).unwrap().buffers;
    let mut state = State { weights: Arc::new(all), ..State::default() };
    let x = random(DType::F32, &[16, 256], 3).to_tensor();
    let inputs = [backend.upload(&x).unwrap()];
    let mut outputs = [backend.output(zeros().ty()).unwrap()];
    let error = session.run(state.with(&inputs, &mut outputs)).err().unwrap().to_string();
    assert!(error.contains("state `count`") && error.contains("share"), "{error}");
}

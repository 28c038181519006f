//! The executor on a GPU: memory, samples, profiles. Its results are checked by `ops` and
//! `random_graphs`. A program of its own, since samples are timed.

#![allow(clippy::unwrap_used)] // A test may unwrap, its helpers too.

#[path = "all/support/mod.rs"]
#[allow(dead_code, unused_imports)] // A part is enough here.
mod support;

use overdrive_ir::backend::{CacheState, Protocol};
use overdrive_ir::{
    Backend, BackendError, Builder, DType, Graph, Mode, State, Tensor, TensorType, Tuning,
};
use support::gpu;

fn bytes_tensor(len: usize) -> Tensor {
    let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
    Tensor::from_bytes(TensorType::new(DType::U8, [len]), bytes)
        .expect("as many bytes as the type has")
}

#[test]
fn what_goes_up_comes_down() {
    let Some(backend) = gpu() else { return };
    for len in [0, 1, 511, 4096, (4 << 20) - 1, 4 << 20, (12 << 20) + 5] {
        let tensor = bytes_tensor(len);
        let mut buffer = backend.upload(&tensor).unwrap();
        assert_eq!(backend.download(&buffer).unwrap().bytes(), tensor.bytes(), "{len}");
        let other =
            Tensor::from_bytes(tensor.ty().clone(), vec![9; len].into_boxed_slice()).unwrap();
        backend.write(&mut buffer, &other).unwrap();
        assert_eq!(backend.download(&buffer).unwrap().bytes(), other.bytes(), "{len}");
        backend.copy(&backend.upload(&tensor).unwrap(), &mut buffer).unwrap();
        assert_eq!(backend.download(&buffer).unwrap().bytes(), tensor.bytes(), "{len}");
    }
    let [short, mut long] = [1, 2].map(|len| backend.upload(&bytes_tensor(len)).unwrap());
    assert!(backend.copy(&short, &mut long).is_err());
    let poisoned = backend.output(&TensorType::new(DType::F32, [33])).unwrap();
    assert!(backend.download(&poisoned).unwrap().to_f64().iter().all(|v| v.is_nan()));
}

/// `y = exp(x) + 1` over `n` elements.
fn exponential(n: usize) -> Graph {
    let b = Builder::new("exponential");
    let x = b.input("x", TensorType::new(DType::F32, [n]));
    b.output("y", x.exp() + 1.0);
    b.finish().expect("the graph is well-formed")
}

#[test]
fn samples_have_both_times_and_leave_the_results_right() {
    let Some(backend) = gpu() else { return };
    // A call far shorter than an event's grain, and one far longer.
    for n in [1000, 32 << 20] {
        let graph = exponential(n);
        for (mode, cache) in [
            (Mode::Eager, CacheState::Cold),
            (Mode::Compile, CacheState::Warm),
            (Mode::Compile, CacheState::Cold),
            (Mode::Graph, CacheState::Cold),
        ] {
            let mut session =
                backend.compile(&graph, mode, &Tuning::default()).unwrap().session().unwrap();
            let x = Tensor::from_f64(DType::F32, [n], &vec![0.5; n]);
            let inputs = [backend.upload(&x).unwrap()];
            let mut outputs = [backend.output(x.ty()).unwrap()];
            let protocol = Protocol { samples: 3, calls_per_sample: 2, cache };
            let mut state = State::default();
            let samples = session.sample(state.with(&inputs, &mut outputs), protocol).unwrap();
            assert_eq!(samples.len(), 3);
            for sample in &samples {
                let device_ns = sample.device_ns.unwrap();
                assert!(device_ns > 0.0 && sample.host_ns > device_ns / 2.0, "{sample:?}");
                assert!(sample.flags.is_empty(), "{sample:?}");
                // Any SM clock that there is, in cycles per nanosecond.
                let clock = sample.cycles.unwrap() / device_ns;
                assert!((0.1..4.0).contains(&clock), "{sample:?}");
            }
            let y = backend.download(&outputs[0]).unwrap().to_f64();
            let expected = 0.5f64.exp() + 1.0;
            assert!(
                y.iter().all(|v| (v - expected).abs() < 1e-6),
                "{mode} {cache:?} {n}: {}",
                y[0]
            );
        }
    }
}

#[test]
fn profiles_cover_the_steps() {
    let Some(backend) = gpu() else { return };
    let graph = exponential(1 << 20);
    let mut session =
        backend.compile(&graph, Mode::Jit, &Tuning::default()).unwrap().session().unwrap();
    let x = Tensor::from_f64(DType::F32, [1 << 20], &vec![0.5; 1 << 20]);
    let inputs = [backend.upload(&x).unwrap()];
    let mut outputs = [backend.output(x.ty()).unwrap()];
    let steps = session.profile(State::default().with(&inputs, &mut outputs), 4).unwrap();
    assert_eq!(steps.len(), session.plan().steps.len());
    for step in &steps {
        assert_eq!(step.time_ns.len(), 4, "{}", step.name);
        assert!(step.time_ns.iter().all(|&ns| ns > 0.0), "{step:?}");
    }
    assert!(session.memory().transient_bytes > 0, "the sum waits for the exponentials");
}

#[test]
fn what_does_not_fit_is_an_error_and_the_device_goes_on() {
    let Some(backend) = gpu() else { return };
    let error = backend.output(&TensorType::new(DType::F32, [1 << 40])).unwrap_err();
    let BackendError::OutOfMemory { needed, available, .. } = error else { panic!("{error}") };
    assert!(needed == 4 << 40 && available < needed);
    let tensor = bytes_tensor(1 << 20);
    assert_eq!(
        backend.download(&backend.upload(&tensor).unwrap()).unwrap().bytes(),
        tensor.bytes()
    );
}

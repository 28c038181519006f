//! The promises of an executable: states, prepared weights, errors that name the argument, memory
//! that is told.

use crate::support::{MODES, Session, check, random};
use overdrive_cpu::CpuBackend;
use overdrive_ir::backend::{CacheState, Protocol};
use overdrive_ir::eval::{States, eval};
use overdrive_ir::{
    Array, Backend, BackendError, Builder, Compare, DType, Expr, Graph, Init, Mode, Prim, State,
    Tensor, TensorType, Tuning, Unary,
};
use testkit::Tolerance;

fn f32s(shape: impl Into<overdrive_ir::Shape>) -> TensorType {
    TensorType::new(DType::F32, shape)
}

/// `y = relu(x w)`, with w a state that nothing changes.
fn layer() -> Graph {
    let b = Builder::new("layer");
    let x = b.input("x", f32s([5usize, 8]));
    let w = b.state("w", f32s([8usize, 6]), Init::Normal { std: 1.0, seed: 3 });
    b.output("y", x.matmul(w).relu());
    b.finish().unwrap()
}

/// A counter, a cache that is written at the counter, a weight that decays, and two states that
/// swap.
fn recurrent() -> Graph {
    let b = Builder::new("recurrent");
    let x = b.input("x", f32s([1usize, 4]));
    let count = b.state("count", TensorType::new(DType::I64, [2usize]), Init::ZEROS);
    let cache = b.state("cache", f32s([8usize, 4]), Init::ZEROS);
    let w = b.state("w", f32s([4usize, 4]), Init::Normal { std: 1.0, seed: 1 });
    let (p, q) = (
        b.state("p", f32s([3usize]), Init::Constant(1.0)),
        b.state("q", f32s([3usize]), Init::Constant(2.0)),
    );
    let cached = b.op1(Prim::DynamicUpdateSlice, &[cache, x, count]);
    b.output("y", cached.matmul(w));
    b.output("old", cache * 1.0);
    let step = b.constant(Tensor::from_ints(DType::I64, [2usize], &[1, 0]));
    b.update("count", count + step);
    b.update("cache", cached);
    b.update("w", w * 0.5);
    b.update("p", q);
    b.update("q", p);
    b.finish().unwrap()
}

#[test]
fn states_move_on_from_call_to_call_and_keep_their_address() {
    let graph = recurrent();
    let inputs = [random(DType::F32, &[1, 4], 5)];
    check(&graph, &inputs, Tolerance::new(DType::F32, 4, 8.0));
    for mode in MODES {
        let mut session =
            Session::new(&graph, mode, 2, &inputs.each_ref().map(Array::to_tensor)).unwrap();
        let address = |session: &Session, name: &str| {
            let memory = session.state.buffers[name].memory.as_any();
            memory.downcast_ref::<overdrive_cpu::memory::CpuMemory>().unwrap().bytes().start()
        };
        let names = ["count", "cache", "w", "p", "q"];
        let before = names.map(|name| address(&session, name));
        session.run().unwrap();
        assert_eq!(names.map(|name| address(&session, name)), before, "{mode}");
    }
}

#[test]
fn packed_weights_follow_the_state_that_they_come_from() {
    let graph = layer();
    let input = random(DType::F32, &[5, 8], 2);
    for mode in MODES {
        let mut session = Session::new(&graph, mode, 1, &[input.to_tensor()]).unwrap();
        for seed in [1, 2, 2, 3] {
            let w = random(DType::F32, &[8, 6], seed);
            let mut states = States::from([("w".to_owned(), w.clone())]);
            if seed == 3 {
                // Another buffer in the old one's place.
                let buffer = session.backend.upload(&w.to_tensor()).unwrap();
                session.state.buffers.insert("w".into(), buffer);
            } else {
                let buffer = session.state.buffers.get_mut("w").unwrap();
                session.backend.write(buffer, &w.to_tensor()).unwrap();
            }
            session.run().unwrap();
            let expected = &eval(&graph, std::slice::from_ref(&input), &mut states)[0];
            testkit::compare(expected, &session.outputs()[0], Tolerance::new(DType::F32, 8, 10.0))
                .unwrap();
        }
    }
}

/// How many of a row are greater than each of it, by a function of rows.
fn places(rows: usize, columns: usize, of: impl for<'b> Fn(Expr<'b>) -> Expr<'b>) -> Graph {
    let b = Builder::new("places");
    let p = of(b.input("x", f32s([rows, columns])));
    let (other, own) = (p.reshape([rows, 1, columns]), p.reshape([rows, columns, 1]));
    let better = other.compare(Compare::Gt, own);
    b.output("y", better.select(own.constant(1.0), own.constant(0.0)).sum(&[2]));
    b.finish().unwrap()
}

/// A value that is compared with itself may be computed twice, and in other loops. Both times it
/// has the same bits, so that no number is above itself, and places are those of a ranking.
#[test]
fn a_value_equals_itself_however_it_is_computed() {
    type OfRows = for<'b> fn(Expr<'b>) -> Expr<'b>;
    let functions: [OfRows; 5] = [
        |x| x.softmax(1),
        |x| x / x.unary(Unary::Abs).sum(&[1]).reshape([x.sizes()[0], 1]),
        |x| (x.silu() * 0.3 + x).unary(Unary::Exp),
        |x| x.unary(Unary::Logistic) / (x * x).sum(&[1]).reshape([x.sizes()[0], 1]),
        |x| x.unary(Unary::Tanh) * 1.7 - x,
    ];
    for (rows, columns) in [(1, 8), (1, 64), (3, 60), (64, 8), (64, 60), (64, 64)] {
        let input = random(DType::F32, &[rows, columns], 7);
        for (number, of) in functions.iter().enumerate() {
            let graph = places(rows, columns, of);
            for mode in MODES {
                let mut session = Session::new(&graph, mode, 1, &[input.to_tensor()]).unwrap();
                session.run().unwrap();
                let places = session.outputs().remove(0);
                for row in 0..rows {
                    let mut found: Vec<f64> =
                        (0..columns).map(|column| places.at(&[row, column])).collect();
                    found.sort_by(f64::total_cmp);
                    let expected: Vec<f64> = (0..columns).map(|place| place as f64).collect();
                    let what =
                        format!("function {number} of {rows} x {columns}, {mode}, row {row}");
                    assert_eq!(found, expected, "{what}");
                }
            }
        }
    }
}

#[test]
fn wrong_arguments_are_errors_that_name_them() {
    let graph = layer();
    let input = random(DType::F32, &[5, 8], 2).to_tensor();
    let fresh = || Session::new(&graph, Mode::Compile, 1, std::slice::from_ref(&input)).unwrap();
    let message = |mut session: Session| session.run().unwrap_err().to_string();

    let mut session = fresh();
    session.inputs[0] =
        session.backend.upload(&Tensor::from_f64(DType::F32, [5usize, 7], &[0.0; 35])).unwrap();
    assert_eq!(message(session), "input `x`: expected f32[5, 8], found f32[5, 7]");

    let mut session = fresh();
    session.outputs[0] = session.backend.output(&TensorType::new(DType::F64, [5usize, 6])).unwrap();
    assert_eq!(message(session), "output `y`: expected f32[5, 6], found f64[5, 6]");

    let mut session = fresh();
    session.state = State::default();
    assert_eq!(message(session), "state `w`: expected f32[8, 6], found no state of this name");

    let mut session = fresh();
    session.inputs.clear();
    assert_eq!(message(session), "number of inputs: expected 1, found 0");
}

#[test]
fn what_a_cpu_cannot_do_is_refused_when_compiling() {
    let none = CpuBackend::new(Some(0));
    assert!(matches!(none, Err(BackendError::Mismatch { what, .. }) if what == "threads"));
    let backend = CpuBackend::new(Some(1)).unwrap();
    let compile = |graph: &Graph, mode| {
        backend.compile(graph, mode, &Tuning::default()).map(|_| ()).unwrap_err()
    };
    assert!(matches!(compile(&layer(), Mode::Graph), BackendError::Unsupported { .. }));

    let b = Builder::new("too large");
    let x = b.input("x", f32s([1usize << 20, 1]));
    let y = (x * b.full(DType::F32, [1usize, 1 << 20], 2.0)).softmax(1);
    b.output("y", y.sum(&[0, 1]));
    match compile(&b.finish().unwrap(), Mode::Jit) {
        BackendError::OutOfMemory { needed, available, remedy } => {
            assert!(needed >= 1 << 42 && available < needed && remedy.contains("smaller batch"));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn eager_takes_memory_as_it_goes_and_says_how_much() {
    let b = Builder::new("chain");
    let mut x = b.input("x", f32s([64usize, 1024]));
    for _ in 0..8 {
        x = x.matmul(b.state(
            &b.site().to_string(),
            f32s([1024usize, 1024]),
            Init::Normal { std: 0.03, seed: 1 },
        ));
    }
    b.output("y", x);
    let graph = b.finish().unwrap();
    let input = random(DType::F32, &[64, 1024], 1).to_tensor();
    for (mode, most) in [(Mode::Eager, 3), (Mode::Compile, 2)] {
        let mut session = Session::new(&graph, mode, 2, std::slice::from_ref(&input)).unwrap();
        session.run().unwrap();
        session.run().unwrap();
        let memory = session.compiled.memory();
        let activation = 64 * 1024 * 4;
        assert!(
            (activation..=most * activation).contains(&memory.transient_bytes),
            "{mode}: {memory:?}"
        );
        assert_eq!(memory.state_bytes, 8 * 1024 * 1024 * 4);
        assert_eq!(
            memory.persistent_bytes >= memory.state_bytes,
            mode == Mode::Compile,
            "{memory:?}"
        );
    }
}

/// Workers keep their scratch for other models, and a call counts its own needs alone.
#[test]
fn scratch_of_a_call_does_not_depend_on_those_before() {
    let backend = CpuBackend::new(Some(2)).unwrap();
    let workspace = |size: usize| {
        let b = Builder::new("product");
        let [x, w] = ["x", "w"].map(|name| b.input(name, f32s([size, size])));
        b.output("y", x.matmul(w));
        let graph = b.finish().unwrap();
        let compiled = backend.compile(&graph, Mode::Compile, &Tuning::default()).unwrap();
        let mut session = compiled.session().unwrap();
        let input = random(DType::F32, &[size, size], 1).to_tensor();
        let inputs = [&input, &input].map(|input| backend.upload(input).unwrap());
        let mut outputs = [backend.output(&f32s([size, size])).unwrap()];
        let mut state = State::initial(&graph, &backend).unwrap();
        session.run(state.with(&inputs, &mut outputs)).unwrap().wait().unwrap();
        session.memory().workspace_bytes
    };
    let (small, large) = (workspace(64), workspace(1024));
    assert!(large > small, "{large} {small}");
    assert_eq!(workspace(64), small);
}

#[test]
fn samples_and_profiles_come_from_real_calls() {
    let graph = layer();
    let input = random(DType::F32, &[5, 8], 2);
    let mut session = Session::new(&graph, Mode::Jit, 2, &[input.to_tensor()]).unwrap();
    let Session { compiled, state, inputs, outputs, .. } = &mut session;
    let protocol = Protocol { samples: 3, calls_per_sample: 2, cache: CacheState::Warm };
    let samples = compiled.sample(state.with(inputs, outputs), protocol).unwrap();
    assert!(samples.len() == 3 && samples.iter().all(|s| s.host_ns > 0.0 && s.device_ns.is_none()));
    let profile = compiled.profile(state.with(inputs, outputs), 4).unwrap();
    assert_eq!(profile.len(), compiled.plan().steps.len());
    for (step, profile) in compiled.plan().steps.iter().zip(&profile) {
        // Packing has run before, and nothing changed since.
        assert_eq!(profile.time_ns.len(), if step.prepare { 0 } else { 4 }, "{}", step.name);
    }
    let expected = &eval(&graph, &[input], &mut States::new())[0];
    testkit::compare(expected, &session.outputs()[0], Tolerance::new(DType::F32, 8, 10.0)).unwrap();
}

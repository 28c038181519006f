//! Plans of small models: what becomes a step, what fuses, and that the arena holds no overlap.

use overdrive_ir::plan::{Place, StepKind};
use overdrive_ir::{Builder, Caps, DType, Expr, Graph, Init, Mode, Plan, TensorType, Tuning};
use overdrive_passes::plan;
use std::collections::{BTreeMap, BTreeSet};

fn caps() -> Caps {
    Caps {
        device: "test".into(),
        memory_bytes: 1 << 30,
        claims: BTreeSet::from(["attention".to_owned()]),
        contraction_dtypes: BTreeSet::from([DType::F32]),
        loop_dtypes: DType::ALL.into(),
        flops_per_byte: 10.0,
        ..Caps::default()
    }
}

fn f32s(shape: impl Into<overdrive_ir::Shape>) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn plans(graph: &Graph) -> [Plan; 2] {
    [Mode::Jit, Mode::Compile].map(|mode| plan(graph, mode, &caps(), &Tuning::default()).expect("plans"))
}

fn kinds(plan: &Plan) -> Vec<&'static str> {
    let kind = |s: &overdrive_ir::plan::Step| match s.kind {
        StepKind::Loop(_) => "loop",
        StepKind::Gemm(_) => "gemm",
        StepKind::Kernel(_) => "kernel",
        StepKind::Host(_) => "host",
        _ => "other",
    };
    plan.steps.iter().map(kind).collect()
}

fn model(name: &str, body: impl for<'b> Fn(&'b Builder, Expr<'b>) -> Expr<'b>) -> Graph {
    let b = Builder::new(name);
    let x = b.input("x", f32s([8usize, 16]));
    let y = body(&b, x);
    b.output("y", y);
    b.finish().expect("the model is well typed")
}

#[test]
fn a_linear_layer_and_what_follows_is_one_gemm_when_compiled() {
    let graph = model("linear", |b, x| {
        let w = b.state("w", f32s([16usize, 32]), Init::Constant(0.1));
        let bias = b.state("bias", f32s([32usize]), Init::ZEROS);
        x.linear(w, Some(bias)).relu() * 2.0
    });
    let [jit, compiled] = plans(&graph);
    assert_eq!(kinds(&jit), ["gemm", "loop", "loop"]);
    assert_eq!(kinds(&compiled), ["gemm"]);
    let StepKind::Gemm(call) = &compiled.steps[0].kind else { unreachable!() };
    assert_eq!((call.m, call.n, call.k), (8, 32, 16));
    assert_eq!(compiled.arena_bytes, [0], "the only result is the caller's output");
}

#[test]
fn softmax_is_one_loop_with_two_reductions_in_every_mode() {
    let graph = model("softmax", |_, x| x.softmax(1));
    for plan in plans(&graph) {
        assert_eq!(kinds(&plan), ["loop"]);
        let StepKind::Loop(program) = &plan.steps[0].kind else { unreachable!() };
        assert_eq!((program.extents.as_slice(), program.reduced), ([8, 16].as_slice(), 1));
    }
    let columns = model("columns", |_, x| x.softmax(0));
    let StepKind::Loop(program) = &plans(&columns)[0].steps[0].kind else { unreachable!() };
    assert_eq!(program.extents, [16, 8], "the reduced dimension comes last");
}

#[test]
fn a_value_used_on_both_sides_of_a_contraction_makes_no_cycle() {
    let graph = model("residual", |b, x| {
        let w = b.state("w", f32s([16usize, 16]), Init::Constant(0.1));
        let h = x.relu();
        h + (h * 3.0).matmul(w)
    });
    let [_, compiled] = plans(&graph);
    assert_eq!(kinds(&compiled), ["loop", "gemm"]);
}

#[test]
fn lives_that_overlap_share_no_bytes() {
    let graph = model("chain", |b, x| {
        let w = b.state("w", f32s([16usize, 16]), Init::Constant(0.1));
        let mut h = x;
        for _ in 0..6 {
            h = h.softmax(1).matmul(w) + h;
        }
        h
    });
    for plan in plans(&graph) {
        let mut live: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        for (index, step) in plan.steps.iter().enumerate() {
            for &slot in step.reads.iter().chain(&step.writes) {
                let entry = live.entry(slot.0 as usize).or_insert((index, index));
                entry.1 = index;
            }
        }
        let arena = |slot: usize| match plan.slots[slot].place {
            Place::Arena { offset, .. } => Some((offset, offset + plan.slots[slot].bytes())),
            _ => None,
        };
        for (&a, &(a0, a1)) in &live {
            for (&b, &(b0, b1)) in live.range(a + 1..) {
                if let (Some(x), Some(y)) = (arena(a), arena(b))
                    && a0 <= b1
                    && b0 <= a1
                {
                    assert!(x.1 <= y.0 || y.1 <= x.0, "slots {a} and {b} overlap");
                }
            }
        }
        assert!(plan.arena_bytes[0] >= plan.live_bytes);
        assert!(plan.arena_bytes[0] as f64 <= 1.15 * plan.live_bytes as f64);
    }
}

#[test]
fn a_state_that_is_scaled_is_updated_in_place() {
    let b = Builder::new("decay");
    let p = b.state("p", f32s([4usize, 4]), Init::Constant(1.0));
    b.update("p", p * 0.9);
    let graph = b.finish().unwrap();
    for plan in plans(&graph) {
        let (_, _, new) = plan.updates[0].clone();
        assert_eq!(plan.slot(new).place, Place::State("p".into()));
        assert_eq!(plan.arena_bytes, [0]);
    }
}

#[test]
fn an_unbound_dimension_is_named() {
    let b = Builder::new("named");
    let x = b.input("x", f32s(["batch"]));
    b.output("y", x.relu());
    let error = plan(&b.finish().unwrap(), Mode::Jit, &caps(), &Tuning::default()).unwrap_err();
    assert!(error.to_string().contains("batch"), "{error}");
}

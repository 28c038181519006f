//! Loops write over what they read for the last time, and over nothing else.

use overdrive_ir::plan::{SlotPlace, Step, StepKind};
use overdrive_ir::{
    Builder, Call, DType, Decline, Described, Description, Expr, Graph, Init, Kernel, Mode, Plan,
    TensorType, Tuning,
};
use overdrive_passes::plan;
use std::collections::BTreeSet;

type Answer = fn(&Call<'_>) -> Result<Kernel, Decline>;

/// Elements of a side: products and what is computed from them are squares.
const SIDE: usize = 64;

fn device() -> Described<Answer> {
    let description = Description {
        device: "test".into(),
        memory_bytes: 1 << 30,
        contraction_dtypes: BTreeSet::from([DType::F32, DType::F16]),
        loop_dtypes: DType::ALL.into(),
        flops_per_byte: 10.0,
        ..Description::default()
    };
    Described { description, answer: |_| Err(Decline::NoKernel) }
}

/// A product, `work` on it, and a product of the result.
fn between_products(
    dtype: DType,
    work: impl for<'b> Fn(&'b Builder, Expr<'b>) -> Expr<'b>,
) -> Graph {
    let b = Builder::new("between");
    let x = b.input("x", TensorType::new(dtype, [SIDE, SIDE]));
    let w = b.state("w", TensorType::new(dtype, [SIDE, SIDE]), Init::Constant(0.1));
    let y = work(&b, x.matmul(w));
    b.output("y", y.matmul(w.convert(y.dtype())));
    b.finish().expect("the model is well typed")
}

fn planned(graph: &Graph) -> Plan {
    let plan = plan(graph, Mode::Compile, &device(), &Tuning::default()).expect("plans");
    plan.verify().expect("a plan holds its invariants");
    plan
}

/// The loops of a plan that read values of the arena and write others there.
fn loops(plan: &Plan) -> Vec<&Step> {
    let in_arena = |slot: &_| matches!(plan.slot(*slot).place, SlotPlace::Arena { .. });
    let between =
        |step: &&Step| step.reads.iter().any(in_arena) && step.writes.iter().all(in_arena);
    let steps = plan.steps.iter().filter(|step| matches!(step.kind, StepKind::Loop(_)));
    steps.filter(between).collect()
}

#[test]
fn a_row_loop_writes_over_the_product_that_it_reads() {
    let plan = planned(&between_products(DType::F32, |_, x| x.softmax(1)));
    let [softmax] = loops(&plan)[..] else { panic!("one loop: {plan}") };
    assert_eq!(softmax.aliases, [(softmax.reads[0], softmax.writes[0])]);
    assert_eq!(plan.arena_bytes, [SIDE * SIDE * 4], "one buffer: {plan}");
}

#[test]
fn what_is_read_later_or_elsewhere_stays() {
    let kept: [(&str, Graph); 3] = [
        ("read later", between_products(DType::F32, |_, x| x.matmul(x.softmax(1)))),
        ("read at other places", between_products(DType::F32, |_, x| x + x.transpose(&[1, 0]))),
        ("wider", between_products(DType::F16, |_, x| x.softmax(1).convert(DType::F32))),
    ];
    for (name, graph) in &kept {
        let plan = planned(graph);
        assert!(!loops(&plan).is_empty(), "{name}: {plan}");
        assert!(plan.steps.iter().all(|step| step.aliases.is_empty()), "{name}: {plan}");
    }
}

#[test]
fn an_output_is_not_overwritten() {
    let b = Builder::new("output");
    let x = b.input("x", TensorType::new(DType::F32, [SIDE, SIDE]));
    let w = b.state("w", TensorType::new(DType::F32, [SIDE, SIDE]), Init::Constant(0.1));
    let y = x.matmul(w);
    b.output("y", y);
    b.output("z", y.softmax(1).matmul(w));
    let plan = planned(&b.finish().expect("the model is well typed"));
    assert!(plan.steps.iter().all(|step| step.aliases.is_empty()), "{plan}");
}

//! The places of compressed sums in a plan.

use overdrive_ir::plan::StepKind;
use overdrive_ir::{
    Builder, DType, Description, Graph, Mesh, Mode, Prim, Sharding, TensorType, Tuning,
    WithoutKernels,
};
use overdrive_passes::{compress_gradients, plan, shard};
use std::collections::BTreeMap;

/// Layers with a gradient each, whose sums are needed when all is done. The gradients are so large
/// that each is a bucket, in codes too.
fn backward(layers: usize) -> Graph {
    const WIDTH: usize = 4096;
    let b = Builder::new("backward");
    let input = |name: &str, rows| b.input(name, TensorType::new(DType::F32, [rows, WIDTH]));
    let mut x = input("x", 4 * WIDTH);
    for layer in 0..layers {
        let weight = input(&format!("w{layer}"), WIDTH);
        let _scope = b.scope(&format!("layer{layer}"));
        x = x.matmul(weight).tanh();
        b.output(&format!("sum{layer}"), x.dot(x, &[], &[(0, 0)]));
    }
    b.finish().unwrap()
}

#[test]
fn exchanges_run_under_the_work_that_follows() {
    let layers = 8;
    let graph = backward(layers);
    let rows = Sharding::whole(2).and_split(0, &"data".into());
    let shardings = BTreeMap::from([(graph.inputs()[0].value, rows)]);
    let types = || DType::ALL.into();
    let device = WithoutKernels(Description {
        contraction_dtypes: types(),
        loop_dtypes: types(),
        overlaps_collectives: true,
        ..Description::default()
    });
    for scheme in ["f32", "bf16", "int8", "fp8"] {
        let sharded = shard(&graph, &Mesh::new([("data", 2)]), &shardings).unwrap();
        let sharded = compress_gradients(sharded, &"data".into(), scheme.parse().unwrap()).unwrap();
        let plan = plan(&sharded.graph, Mode::Compile, &device, &Tuning::default()).unwrap();
        let at = |is: &dyn Fn(&StepKind, &str) -> bool| {
            plan.steps.iter().position(|step| is(&step.kind, &step.scope)).unwrap()
        };
        let starts = |name: &str| {
            let is = |prim: &Prim| prim.name() == name;
            at(&|kind, _| matches!(kind, StepKind::CollectiveStart { prim } if is(prim)))
        };
        let product = |layer: usize| {
            let scope = format!("layer{layer}");
            at(&|kind, of| matches!(kind, StepKind::Gemm(_)) && of == scope)
        };
        assert!(starts("all_to_all") < product(2), "{scheme}: {plan}");
        // The first sum is there once others are on their way.
        assert!(starts("all_gather") < product(layers - 1), "{scheme}: {plan}");
    }
}

//! The last questions about each step: how much scratch it takes, and whether a kernel takes
//! operands that lie so. A device that exists only as data answers them.

use overdrive_ir::plan::{Note, Space, StepKind};
use overdrive_ir::{
    Builder, Call, DType, Decline, Described, Description, Graph, Kernel, Mode, Plan, Target,
    TensorType, Tuning,
};
use overdrive_passes::{PlanError, explain, plan};

/// Scratch of a product.
const SCRATCH: usize = 1 << 20;

/// A device with a kernel that gathers out of dense operands, and products that take scratch.
fn device() -> impl Target {
    let description = Description {
        device: "test".into(),
        memory_bytes: 1 << 30,
        contraction_dtypes: [DType::F32].into(),
        loop_dtypes: DType::ALL.into(),
        flops_per_byte: 10.0,
        ..Description::default()
    };
    let answer = |call: &Call<'_>| match call {
        Call::Op { op, .. } if op.name() == "gather" => Ok(Kernel::default()),
        Call::Step(step) => match &step.kind {
            StepKind::Gemm(_) => Ok(Kernel { scratch_bytes: SCRATCH, ..Kernel::default() }),
            StepKind::Kernel(call) if !call.operands[0].is_dense() => {
                Err(Decline::Because("its rows are apart".to_owned()))
            }
            _ => Ok(Kernel::default()),
        },
        _ => Err(Decline::NoKernel),
    };
    Described { description, answer }
}

fn planned(graph: &Graph, mode: Mode, memory_limit: Option<u64>) -> Result<Plan, PlanError> {
    plan(graph, mode, &device(), &Tuning { memory_limit, ..Tuning::default() })
}

#[test]
fn a_layout_that_no_kernel_takes_is_a_step_of_the_host_when_planned() {
    let gather = |turned: bool| {
        let b = Builder::new("gather");
        let x = b.input("x", TensorType::new(DType::F32, [6usize, 4]));
        let at = b.input("at", TensorType::new(DType::I32, [3usize, 1]));
        let x = if turned { x.transpose(&[1, 0]) } else { x };
        b.output("y", x.gather(at, &[0]));
        b.finish().expect("well typed")
    };
    for mode in [Mode::Eager, Mode::Jit, Mode::Compile] {
        let dense = planned(&gather(false), mode, None).expect("plans");
        assert!(matches!(dense.steps[0].kind, StepKind::Kernel(_)), "{dense}");
        let (turned, changes) =
            explain(&gather(true), mode, &device(), &Tuning::default()).expect("plans");
        assert!(matches!(turned.steps[0].kind, StepKind::Host(_)), "{turned}");
        let settled = changes.iter().find(|change| change.pass.name == "settle");
        let notes = &settled.expect("it is a pass of every mode").notes;
        let said = |note: &Note| match note {
            Note::Declined { what, reason, .. } => {
                what == "gather" && reason.starts_with("its rows are apart: the f64 reference")
            }
            _ => false,
        };
        assert!(notes.iter().any(said), "{notes:?}");
    }
}

/// Two products share one area of scratch. A limit that has no room for it refuses the plan.
#[test]
fn scratch_counts_once_in_the_peak_and_in_the_limit() {
    let b = Builder::new("products");
    let x = b.input("x", TensorType::new(DType::F32, [8usize, 8]));
    b.output("y", x.matmul(x).exp().matmul(x));
    let graph = b.finish().expect("well typed");
    for mode in [Mode::Eager, Mode::Jit, Mode::Compile] {
        let found = planned(&graph, mode, None).expect("plans");
        assert_eq!(found.scratch_bytes(), SCRATCH, "{found}");
        let mut without = found.clone();
        without.steps.iter_mut().for_each(|step| step.scratch_bytes = 0);
        let peak = found.peak_bytes(Space::MAIN);
        assert_eq!(peak, without.peak_bytes(Space::MAIN) + SCRATCH as u64, "{found}");
        assert_eq!(found.needed_bytes(), without.needed_bytes() + SCRATCH as u64);
        assert_eq!(planned(&graph, mode, Some(peak)), Ok(found));
        let refused = planned(&graph, mode, Some(peak - 1));
        assert!(matches!(refused, Err(PlanError::OverLimit { .. })), "{refused:?}");
    }
}

//! Facts that a file of ONNX does not say: branches that are not taken, and dimensions that nobody
//! knows yet.

use crate::fields::*;
use overdrive_formats::FormatError;
use overdrive_formats::onnx::{Binding, Model};
use overdrive_ir::{DType, Graph, Shape, Tensor, eval};
use std::path::Path;

fn decoded(file: Vec<u8>) -> Model {
    Model::decode(Path::new("m.onnx"), file.into()).expect("the file is well-formed")
}

/// A sub-graph of one node, whose result is `y`.
fn branch(name: &str, node: Vec<u8>) -> Vec<u8> {
    [bytes(1, name.as_bytes()), bytes(6, &graph(&[node], &[], &[])), number(20, 5)].concat()
}

/// Two products of `x` by matrices of 4 and of 8 rows, as a model for two rates has them: one of
/// them never fits.
fn two_rates(condition: Vec<Vec<u8>>, inputs: &[Vec<u8>]) -> Model {
    let weight = |name: &str, rows: i64| {
        let ones: Vec<u8> = (0..rows).flat_map(|_| 1f32.to_le_bytes()).collect();
        tensor(name, FLOAT, &[rows, 1], &[bytes(9, &ones)])
    };
    let product = |weight: &str| node("MatMul", &["x", weight], "y", &[]);
    let branches =
        [branch("then_branch", product("four")), branch("else_branch", product("eight"))];
    let nodes = [condition, vec![node("If", &["is_four"], "y", &branches)]].concat();
    let constants = [weight("four", 4), weight("eight", 8), scalar("rate", 16_000)];
    decoded(model(&graph(&nodes, &constants, inputs), &[]))
}

fn sums(graph: &Graph, width: usize) -> Vec<f64> {
    eval::eval_tensors(graph, &[Tensor::from_f32([1, width], &vec![1.0; width])])[0].to_f64()
}

#[test]
fn a_branch_that_is_not_taken_need_not_fit() {
    let equal = || vec![node("Equal", &["asked", "rate"], "is_four", &[])];
    for (width, rate) in [(4, 16_000), (8, 8_000)] {
        let ports = [port("x", FLOAT, &[1, width]), port("asked", INT64, &[])];
        let model = two_rates(equal(), &ports);
        // Nobody knows the rate yet, and one branch does not fit: who decides it is named.
        match model.graph(&Binding::default()) {
            Err(FormatError::Undecided { inputs, value, .. }) => {
                assert_eq!((inputs, value.as_str()), (vec!["asked".to_owned()], "is_four"));
            }
            other => panic!("{other:?}"),
        }
        let asked = Tensor::from_ints(DType::I64, Shape::default(), &[rate]);
        let values = [("asked".to_owned(), asked)].into();
        let graph = model.graph(&Binding { values, ..Binding::default() }).unwrap();
        assert_eq!(sums(&graph, width as usize), [width as f64]);
        // The weights of the other rate are no parameters of this graph.
        assert_eq!(graph.states().len(), 1);
    }
}

#[test]
fn a_branch_that_the_sizes_decide_needs_no_value() {
    for width in [4, 8] {
        let shape = vec![
            node("Shape", &["x"], "shape", &[]),
            node("Gather", &["shape", "last"], "width", &[]),
            node("Equal", &["width", "width_of_four"], "is_four", &[]),
        ];
        let constants = [scalar("last", 1), scalar("width_of_four", 4)];
        let nodes: Vec<Vec<u8>> = constants
            .iter()
            .zip(["last", "width_of_four"])
            .map(|(tensor, name)| {
                node(
                    "Constant",
                    &[],
                    name,
                    &[[bytes(1, b"value"), bytes(5, tensor), number(20, 4)].concat()],
                )
            })
            .chain(shape)
            .collect();
        let model = two_rates(nodes, &[port("x", FLOAT, &[1, width])]);
        assert_eq!(
            sums(&model.graph(&Binding::default()).unwrap(), width as usize),
            [width as f64]
        );
    }
}

#[test]
fn a_branch_that_is_not_taken_may_have_any_op_and_a_taken_one_says_what_is_lacking() {
    let inner = |op: &str| {
        let branches = [
            branch("then_branch", node("Relu", &["x"], "y", &[])),
            branch("else_branch", node(op, &["x"], "y", &[])),
        ];
        node("If", &["yes"], "y", &branches)
    };
    let taken = |value: i64| {
        let truth = tensor("yes", 9, &[], &[bytes(9, &[value as u8])]);
        let outer =
            [branch("then_branch", inner("NoSuchOp")), branch("else_branch", inner("NoSuchOp"))];
        let nodes = [node("If", &["yes"], "y", &outer)];
        decoded(model(&graph(&nodes, &[truth], &[port("x", FLOAT, &[2])]), &[]))
            .graph(&Binding::default())
    };
    assert_eq!(taken(1).unwrap().nodes().len(), 1);
    let said = taken(0).unwrap_err();
    assert!(
        matches!(said, FormatError::Lacking { .. }) && said.to_string().contains("NoSuchOp"),
        "{said}"
    );
}

/// An input of two dimensions, each written as these fields.
fn square(name: &str, dims: [Vec<u8>; 2]) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|dim| bytes(1, dim)).collect();
    let tensor = [number(1, FLOAT), bytes(2, &dims)].concat();
    [bytes(1, name.as_bytes()), bytes(2, &bytes(1, &tensor))].concat()
}

#[test]
fn what_exporters_write_for_the_unknown_is_unknown_and_never_the_same() {
    let named = |name: &str| bytes(2, name.as_bytes());
    let unknown = [
        number(1, -1),
        number(1, i64::MIN),
        vec![],
        named(""),
        named("?"),
        named("*"),
        named("-1"),
    ];
    let words = [named("None"), named("unknown"), named(" ")];
    for way in unknown.into_iter().chain(words) {
        let ports =
            [square("x", [way.clone(), way.clone()]), square("z", [way.clone(), number(1, 3)])];
        let model = decoded(model(&graph(&[node("Relu", &["x"], "y", &[])], &[], &ports), &[]));
        let names: Vec<String> = model.dimensions().unwrap().into_iter().collect();
        assert_eq!(names, ["x_0", "x_1", "z_0"], "{way:?}");
        let sizes = [("x_0".to_owned(), 2), ("x_1".to_owned(), 5), ("z_0".to_owned(), 7)].into();
        let graph = model.graph(&Binding { sizes, ..Binding::default() }).unwrap();
        assert_eq!(graph.ty(graph.inputs()[0].value).sizes(), [2, 5]);
        assert_eq!(graph.ty(graph.inputs()[1].value).sizes(), [7, 3]);
    }
}

#[test]
fn names_stay_names_and_zero_is_a_size() {
    let named = |name: &str| bytes(2, name.as_bytes());
    // A name of the file that looks like one of ours is another dimension.
    let ports = [
        square("x", [vec![], named("unk__6")]),
        square("z", [named("x_0"), number(1, 0)]),
        square("w", [named("unk__6"), named("2*s0")]),
    ];
    let file = decoded(model(&graph(&[node("Relu", &["x"], "y", &[])], &[], &ports), &[]));
    let names: Vec<String> = file.dimensions().unwrap().into_iter().collect();
    assert_eq!(names, ["2*s0", "unk__6", "x_0", "x_0_"]);
    assert_eq!(file.inputs().unwrap()[1].1.to_string(), "f32[x_0, 0]");

    let rankless = [bytes(1, b"x"), bytes(2, &bytes(1, &number(1, FLOAT)))].concat();
    let file = decoded(model(&graph(&[node("Relu", &["x"], "y", &[])], &[], &[rankless]), &[]));
    let said = file.inputs().unwrap_err().to_string();
    assert!(said.contains("without a shape") && said.contains("dimensions may be names"), "{said}");
}

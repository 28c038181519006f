//! IR text: exact round trips, errors with their place, and no panic on damaged text.

use overdrive_ir::ops::OPS;
use overdrive_ir::{
    Builder, Compare, DType, Dim, Fill, Graph, Init, Pad, Prim, Sample, Shape, SortOrder, Tensor,
    TensorType, verify,
};
use proptest::prelude::*;

fn f32s(shape: impl Into<Shape>) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn tiny() -> Graph {
    let b = Builder::new("tiny \"one\"");
    let x = b.input("x", f32s([Dim::from("batch"), Dim::from(4)]));
    let h = {
        let _scope = b.scope("block0");
        let _scope = b.scope("fc");
        let w = b.state(
            "weight",
            f32s([4usize, 2]),
            Init::Uniform { bound: 0.1 + 0.2, seed: u64::MAX },
        );
        x.linear(w, None).softmax(1)
    };
    let low = b.state("amax", f32s(Shape::default()), Init::Constant(f64::NEG_INFINITY));
    let sorted = b.op(Prim::Sort { axis: 1, order: SortOrder::Descending }, &[h]);
    b.output("y", sorted[0]);
    b.output("indices", sorted[1]);
    let value = Tensor::from_f64(DType::F32, [2usize], &[f64::NAN, -0.0]);
    let constant = b.state(
        "table",
        f32s([2usize]),
        Init::Value(Tensor::from_f64(DType::F32, [2usize], &[1.5, -0.0])),
    );
    b.output("z", constant + b.constant(value));
    b.update("amax", low.max(low.constant(f64::INFINITY)));
    b.finish().expect("the graphs of these tests are well typed")
}

/// A loop inside a branch: regions in regions.
fn nested() -> Graph {
    let counter = TensorType::scalar(DType::I32);
    let region = |name: &str, build: &dyn Fn(&Builder)| {
        let b = Builder::new(name);
        build(&b);
        b.finish().expect("the graphs of these tests are well typed")
    };
    let condition = region("condition", &|b| {
        let i = b.input("i", counter.clone());
        b.output("more", i.compare(Compare::Lt, i.constant(10.0)));
    });
    let body = region("body", &|b| {
        let i = b.input("i", counter.clone());
        b.output("i", i + 1.0);
    });
    let yes = region("then", &|b| {
        let i = b.input("i", counter.clone());
        let _scope = b.scope("loop");
        let done = b.node(
            Prim::While { carried: 1, max_trips: Some(16) },
            &[i],
            vec![condition.clone(), body.clone()],
        );
        b.output("i", done[0]);
    });
    let no = region("else", &|b| b.output("i", b.input("i", counter.clone())));
    region("nested", &|b| {
        let i = b.input("i", counter.clone());
        let results =
            b.if_else(i.compare(Compare::Gt, i.constant(3.0)), &[i], [yes.clone(), no.clone()]);
        b.output("i", results[0]);
    })
}

/// Graphs of one node each: every case of every op, and the primitives with the richest attributes.
fn single_ops() -> Vec<Graph> {
    let prims = [
        Sample::new(Prim::Pad { pads: vec![Pad { low: -1, high: 2, interior: 1 }] })
            .normal([5usize])
            .normal(Shape::default()),
        Sample::new(Prim::Slice { start: vec![1], limit: vec![4], stride: vec![2] })
            .normal([5usize]),
        Sample::new(Prim::Iota {
            dtype: DType::I64,
            shape: [Dim::from("B"), Dim::from(3)].into(),
            axis: 1,
        }),
        Sample::new(Prim::Gather { axes: vec![0] })
            .normal(["V", "D"])
            .operand(TensorType::new(DType::I32, [Dim::from("B"), Dim::from(1)]), Fill::Index(3)),
    ];
    let samples = prims.into_iter().chain(OPS.iter().flat_map(|op| (op.samples)()));
    samples
        .map(|sample| {
            let b = Builder::new("single");
            let operands: Vec<_> = sample
                .operands
                .iter()
                .enumerate()
                .map(|(i, o)| b.input(&i.to_string(), o.ty.clone()))
                .collect();
            let results = b.node(sample.op.clone(), &operands, sample.regions.clone());
            b.output("y", results[0]);
            b.finish().expect("the graphs of these tests are well typed")
        })
        .collect()
}

fn all() -> Vec<Graph> {
    [vec![tiny(), nested()], single_ops()].concat()
}

#[test]
fn printing_and_parsing_round_trip_exactly() {
    for graph in all() {
        let text = graph.to_string();
        let parsed: Graph = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(parsed.to_string(), text);
        // A NaN is unequal to itself only as a float: constants compare by bytes.
        assert_eq!(parsed, graph);
        verify(&parsed).unwrap();
    }
}

#[test]
fn the_text_reads_as_documented() {
    let text = concat!(
        "overdrive-ir 1\n",
        "graph \"tiny\" {\n",
        "  input %0 \"x\" f32[batch, 4]\n",
        "  state %1 \"fc.weight\" f32[4, 2] {\"uniform\":{\"bound\":0.5,\"seed\":0}}\n",
        "  %2 = linear(%0, %1) : f32[batch, 2] at \"fc\"\n",
        "  %3 = softmax(%2) {\"axis\":1} : f32[batch, 2]\n",
        "  output \"y\" %3\n",
        "}\n"
    );
    assert_eq!(text.parse::<Graph>().unwrap().to_string(), text);
    let squeezed = text.replace("\n  ", " ");
    assert_eq!(squeezed.parse::<Graph>().unwrap().to_string(), text);
}

#[test]
fn errors_name_the_place_and_both_sides() {
    let good = concat!(
        "overdrive-ir 1\ngraph \"g\" {\n  input %0 \"x\" f32[2, 3]\n",
        "  %1 = softmax(%0) {\"axis\":1} : f32[2, 3]\n  output \"y\" %1\n}\n"
    );
    good.parse::<Graph>().unwrap();
    for (from, to, line, column, words) in [
        ("ir 1", "ir 2", 1, 14, ["version 1", "version 2"]),
        ("softmax(", "softmax@7(", 4, 8, ["version 1", "version 7"]),
        ("softmax(", "sofmax(", 4, 8, ["an op", "`sofmax`"]),
        ("(%0)", "(%9)", 4, 16, ["a value defined above", "%9"]),
        ("\"axis\":1", "\"axis\":2", 4, 8, ["an axis below 2", "axis 2"]),
        ("\"axis\":1", "\"axis\":1,\"fast\":true", 4, 20, ["attributes of `softmax`", "`fast`"]),
        (": f32[2, 3]\n", ": f32[3, 2]\n", 4, 31, ["f32[2, 3]", "f32[3, 2]"]),
        ("%0 \"x\" f32", "%0 \"x\" f31", 3, 16, ["an element type", "`f31`"]),
        (
            "f32[2, 3]\n  %",
            "f32[99999999999, 99999999999]\n  %",
            3,
            16,
            ["addressed", "99999999999"],
        ),
        ("output \"y\" %1\n}", "output \"y\" %1\n", 7, 1, ["`}`", "the end"]),
        ("%1 = ", "%2 = ", 5, 14, ["defined above", "%1"]),
        ("}\n", "} x", 6, 3, ["the end of the text", "`x`"]),
    ] {
        assert!(good.contains(from), "{from}");
        let error = good.replacen(from, to, 1).parse::<Graph>().unwrap_err();
        let message = error.to_string();
        assert!(words.iter().all(|w| message.contains(w)), "{to}: {message}");
        assert_eq!((error.line, error.column), (line, column), "{to}: {message}");
    }
}

#[test]
fn deep_nesting_is_refused_and_not_followed() {
    let text = format!("overdrive-ir 1\n{}", "graph \"g\" { if() { ".repeat(100_000));
    let error = text.parse::<Graph>().unwrap_err();
    assert!(error.expected.contains("nested regions"), "{error}");
}

/// Numbers that overflow, meet limits, or change kinds.
const EDGE_NUMBERS: [&str; 8] =
    ["0", "1", "7", "4294967296", "9223372036854775807", "18446744073709551615", "-1", "1e400"];

/// Replaces the `nth` run of digits, counted cyclically.
fn replace_number(text: &str, nth: usize, by: &str) -> String {
    let mut runs: Vec<(usize, usize)> = vec![];
    for (at, c) in text.char_indices().filter(|(_, c)| c.is_ascii_digit()) {
        match runs.last_mut() {
            Some((_, end)) if *end == at => *end = at + c.len_utf8(),
            _ => runs.push((at, at + c.len_utf8())),
        }
    }
    let (start, end) = runs[nth % runs.len()];
    format!("{}{by}{}", &text[..start], &text[end..])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn damaged_text_gives_an_error_or_a_graph_that_verifies(
        which in 0usize..1000,
        numbers in prop::collection::vec((0usize..1000, 0usize..EDGE_NUMBERS.len()), 0..3),
        cuts in prop::collection::vec((0usize..5000, 0usize..8, "[ -~]{0,3}|[{}()%\"é]"), 0..4),
    ) {
        let graphs = all();
        let mut text = graphs[which % graphs.len()].to_string();
        for (nth, number) in numbers {
            text = replace_number(&text, nth, EDGE_NUMBERS[number]);
        }
        for (at, length, insert) in cuts {
            let chars: Vec<char> = text.chars().collect();
            let at = at % chars.len();
            let end = (at + length).min(chars.len());
            text = chars[..at].iter().copied().chain(insert.chars())
                .chain(chars[end..].iter().copied()).collect();
            if text.is_empty() || !text.bytes().any(|b| b.is_ascii_digit()) {
                return Ok(());
            }
        }
        if let Ok(graph) = text.parse::<Graph>() {
            prop_assert!(verify(&graph).is_ok());
            prop_assert_eq!(graph.to_string().parse::<Graph>().unwrap().to_string(),
                graph.to_string());
        }
    }

    #[test]
    fn any_text_at_all_is_refused_calmly(text in "\\PC*") {
        prop_assert!(text.parse::<Graph>().is_err());
    }
}

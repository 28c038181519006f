//! The harm that a file of ONNX can do to its reader: graphs that never end, shapes that do not
//! fit, data that is elsewhere.
//!
//! Each file is written here field by field, so that it says exactly the one wrong thing. The
//! answer is an error that names the place, within memory that the file's size bounds.
//! A program of its own: the allocator counts for the whole process.

#[path = "all/fields.rs"]
#[allow(dead_code)] // A part is enough here.
mod fields;

use fields::*;
use overdrive_bench::memory::CountingAllocator;
use overdrive_formats::onnx::{Binding, Model};
use overdrive_ir::{DType, Tensor, verify};
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// The memory that reading a bad file may take, in bytes. The files here have less than a kilobyte,
/// and the tests beside them run at the same time.
const MEMORY: u64 = 16 << 20;

fn outcome(bytes: Vec<u8>) -> Result<usize, String> {
    let model = Model::decode(Path::new("m.onnx"), bytes.into()).map_err(|e| e.to_string())?;
    model.graph(&Binding::default()).map(|graph| graph.nodes().len()).map_err(|e| e.to_string())
}

fn error(bytes: Vec<u8>) -> String {
    outcome(bytes).expect_err("the file is wrong")
}

#[test]
fn graphs_that_refer_to_themselves_are_errors() {
    let x = || port("x", FLOAT, &[2]);
    let cycle = [
        node("Add", &["x", "b"], "a", &[]),
        node("Relu", &["a"], "b", &[]),
        node("Relu", &["b"], "y", &[]),
    ];
    let said = error(model(&graph(&cycle, &[], &[x()]), &[]));
    assert!(said.contains("`b`, which nothing before computes"), "{said}");

    let opset = bytes(9, &[bytes(1, b""), number(2, 21)].concat());
    let body = [&node("F", &["p"], "q", &[])[..], &bytes(7, b"d")].concat();
    let function =
        [bytes(1, b"F"), bytes(4, b"p"), bytes(5, b"q"), bytes(7, &body), opset, bytes(10, b"d")]
            .concat();
    let call = [&node("F", &["x"], "y", &[])[..], &bytes(7, b"d")].concat();
    let said = error(model(&graph(&[call], &[], &[x()]), &[function]));
    assert!(said.contains("inside itself") || said.contains("functions that end"), "{said}");

    let forever = graph(
        &[node("Identity", &["c"], "d", &[])],
        &[],
        &[port("i", INT64, &[]), port("c", 9, &[])],
    );
    let forever = String::from_utf8_lossy(&forever).replace("\u{1}y", "\u{1}d").into_bytes();
    let body = [bytes(1, b"body"), bytes(6, &forever), number(20, 5)].concat();
    let endless = node("Loop", &["", ""], "y", &[body]);
    assert!(outcome(model(&graph(&[endless], &[], &[]), &[])).is_err());
}

#[test]
fn a_name_has_one_value_and_a_model_has_outputs() {
    let x = || port("x", FLOAT, &[2]);
    let twice = [node("Relu", &["x"], "y", &[]), node("Neg", &["x"], "y", &[])];
    let said = error(model(&graph(&twice, &[], &[x()]), &[]));
    assert!(said.contains("`y`, which is the name of an earlier value"), "{said}");
    let over = [node("Relu", &["x"], "x", &[]), node("Neg", &["x"], "y", &[])];
    assert!(error(model(&graph(&over, &[], &[x()]), &[])).contains("outputs with new names"));

    let relu = [node("Relu", &["s"], "y", &[])];
    let weights = [ints("s", &[1]), ints("s", &[2])];
    let said = error(model(&graph(&relu, &weights, &[]), &[]));
    assert!(said.contains("a name of its own for each initializer, found `s` again"), "{said}");

    let without =
        [bytes(1, &node("Relu", &["x"], "y", &[])), bytes(2, b"g"), bytes(11, &x())].concat();
    assert!(error(model(&without, &[])).contains("at least one output"));
}

#[test]
fn constant_indices_and_equations_are_checked() {
    let x = || port("x", FLOAT, &[4]);
    let gather = |index: i64| {
        let nodes = [node("Gather", &["x", "i"], "y", &[])];
        model(&graph(&nodes, &[scalar("i", index)], &[x()]), &[])
    };
    assert!(outcome(gather(-4)).is_ok() && outcome(gather(3)).is_ok());
    for index in [-5, 4, i64::MAX] {
        assert!(error(gather(index)).contains("indices of an axis of 4"), "{index}");
    }
    let einsum = |equation: &str| {
        let text = [bytes(1, b"equation"), bytes(4, equation.as_bytes()), number(20, 3)].concat();
        let nodes = [node("Einsum", &["x", "x"], "y", &[text])];
        model(&graph(&nodes, &[], &[x()]), &[])
    };
    for equation in ["i,i->", "i,j->ji", "i,i", "...,...->..."] {
        assert!(outcome(einsum(equation)).is_ok(), "{equation}");
    }
    for equation in ["a,a->(", "a,a->b", "a,b->aa", "a,1->a"] {
        assert!(error(einsum(equation)).contains("each letter of the result once"), "{equation}");
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("m.onnx");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let said = Model::open(&pipe).err().unwrap().to_string();
    assert!(said.contains("a pipe or a device"), "{said}");
}

#[test]
fn shapes_that_cannot_be_are_errors_in_little_memory() {
    const HUGE: i64 = 1 << 60;
    let x = || port("x", FLOAT, &[4, 4]);
    let one = |node: Vec<u8>, constants: &[Vec<u8>], inputs: &[Vec<u8>]| {
        model(&graph(&[node], constants, inputs), &[])
    };
    let files = [
        ("an input", one(node("Relu", &["x"], "y", &[]), &[], &[port("x", FLOAT, &[HUGE, HUGE])])),
        ("a negative extent", one(node("Relu", &["x"], "y", &[]), &[], &[port("x", FLOAT, &[-3])])),
        (
            "an initializer",
            one(node("Relu", &["x"], "y", &[]), &[tensor("x", FLOAT, &[HUGE], &[])], &[]),
        ),
        (
            "a negative initializer",
            one(node("Relu", &["x"], "y", &[]), &[tensor("x", FLOAT, &[-1], &[])], &[]),
        ),
        (
            "few bytes for many",
            one(
                node("Relu", &["x"], "y", &[]),
                &[tensor("x", FLOAT, &[1 << 30], &[bytes(9, &[0; 8])])],
                &[],
            ),
        ),
        ("expand", one(node("Expand", &["x", "s"], "y", &[]), &[ints("s", &[HUGE, 4, 4])], &[x()])),
        ("tile", one(node("Tile", &["x", "s"], "y", &[]), &[ints("s", &[HUGE, 8])], &[x()])),
        (
            "constant",
            one(node("ConstantOfShape", &["s"], "y", &[]), &[ints("s", &[HUGE, HUGE])], &[]),
        ),
        ("pad", one(node("Pad", &["x", "s"], "y", &[]), &[ints("s", &[HUGE, 0, HUGE, 0])], &[x()])),
        (
            "resize",
            one(node("Resize", &["x", "", "", "s"], "y", &[]), &[ints("s", &[HUGE, HUGE])], &[x()]),
        ),
        (
            "reshape",
            one(node("Reshape", &["x", "s"], "y", &[]), &[ints("s", &[HUGE, HUGE])], &[x()]),
        ),
        (
            "negative reshape",
            one(node("Reshape", &["x", "s"], "y", &[]), &[ints("s", &[-5, 4])], &[x()]),
        ),
        (
            "range",
            one(
                node("Range", &["a", "b", "c"], "y", &[]),
                &[scalar("a", 0), scalar("b", i64::MAX), scalar("c", 1)],
                &[],
            ),
        ),
        (
            "gemm of vectors",
            one(node("Gemm", &["x", "x"], "y", &[]), &[], &[port("x", FLOAT, &[4])]),
        ),
        (
            "transpose",
            one(node("Transpose", &["x"], "y", &[ints_attribute("perm", &[0, 7])]), &[], &[x()]),
        ),
        (
            "concat",
            one(node("Concat", &["x", "x"], "y", &[int_attribute("axis", HUGE)]), &[], &[x()]),
        ),
        (
            "pool",
            one(
                node(
                    "MaxPool",
                    &["x"],
                    "y",
                    &[ints_attribute("kernel_shape", &[1 << 31, 1 << 31, 1 << 31])],
                ),
                &[],
                &[port("x", FLOAT, &[1, 1, 4, 4, 4])],
            ),
        ),
        (
            "lstm",
            one(
                node("LSTM", &["x", "w", "r"], "y", &[int_attribute("hidden_size", 1)]),
                &[],
                &[
                    port("x", FLOAT, &[1, 1, 1]),
                    port("w", FLOAT, &[1 << 40, 4, 1]),
                    port("r", FLOAT, &[1 << 40, 4, 1]),
                ],
            ),
        ),
        (
            "trip count",
            one(node("Split", &["x"], "y", &[int_attribute("num_outputs", HUGE)]), &[], &[x()]),
        ),
    ];
    for (what, file) in files {
        let before = HEAP.restart_peak().live_bytes;
        let said = outcome(file);
        let taken = HEAP.count().peak_bytes.saturating_sub(before);
        assert!(said.is_err(), "{what}: {said:?}");
        assert!(taken < MEMORY, "{what}: {taken} bytes");
    }
}

/// Exporters name dimensions `s77`. So the message says which axis of which input it is, and what
/// to type.
#[test]
fn dimensions_without_a_size_are_named_with_their_places() {
    let named = |name: &str| bytes(1, &bytes(2, name.as_bytes()));
    let port = |input: &str, dims: &[u8]| {
        let tensor = [number(1, FLOAT), bytes(2, dims)].concat();
        [bytes(1, input.as_bytes()), bytes(2, &bytes(1, &tensor))].concat()
    };
    let x = port("x", &[named("s77"), bytes(1, &number(1, 3)), named("s27")].concat());
    let mask = port("mask", &named("s77"));
    let said = error(model(&graph(&[node("Relu", &["x"], "y", &[])], &[], &[x, mask]), &[]));
    for words in [
        "s27 (axis 2 of `x`)",
        "s77 (axis 0 of `x`, axis 0 of `mask`)",
        "--shape s27=1 --shape s77=1",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }

    let named_so = |dims: &[u8], size: &str| {
        let file = model(&graph(&[node("Relu", &["x"], "y", &[])], &[], &[port("x", dims)]), &[]);
        let sizes = [("s27".to_owned(), 2), (size.to_owned(), 2)].into();
        let model = Model::decode(Path::new("m.onnx"), file.into()).unwrap();
        model.graph(&Binding { sizes, ..Binding::default() }).map(|_| ()).map_err(|e| e.to_string())
    };
    let both = [named("s77"), named("s27")].concat();
    assert_eq!(named_so(&both, "s77"), Ok(()));
    let said = named_so(&named("s27"), "batch").unwrap_err();
    assert!(said.contains("expected sizes of s27, found one of `batch`"), "{said}");
}

#[test]
fn external_data_stays_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("model");
    fs::create_dir(&inner).unwrap();
    fs::write(folder.path().join("secret.bin"), [1u8; 64]).unwrap();
    fs::write(inner.join("weights.bin"), [0u8; 64]).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(folder.path().join("secret.bin"), inner.join("link.bin")).unwrap();
    let read = |location: &str, offset: &str, length: &str, dims: &[i64]| {
        let entry = |key: &str, value: &str| {
            bytes(13, &[bytes(1, key.as_bytes()), bytes(2, value.as_bytes())].concat())
        };
        let more = [
            entry("location", location),
            entry("offset", offset),
            entry("length", length),
            number(14, 1),
        ];
        let weight = tensor("x", FLOAT, dims, &more);
        let path = inner.join("m.onnx");
        fs::write(&path, model(&graph(&[node("Relu", &["x"], "y", &[])], &[weight], &[]), &[]))
            .unwrap();
        let read = Model::open(&path).and_then(|model| model.graph(&Binding::default()));
        read.map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(read("weights.bin", "0", "64", &[16]), Ok(()));
    let secret = folder.path().join("secret.bin");
    for location in ["../secret.bin", "a/../../secret.bin", secret.to_str().unwrap(), "link.bin"] {
        let said = read(location, "0", "64", &[16]).unwrap_err();
        assert!(said.contains("folder") || said.contains("cannot open"), "{location}: {said}");
        assert!(!said.contains("0x01"), "{said}");
    }
    for (offset, length) in
        [("60", "64"), ("18446744073709551615", "2"), ("-1", "4"), ("0", "99999999999999999999")]
    {
        assert!(read("weights.bin", offset, length, &[16]).is_err(), "{offset} {length}");
    }
    let said = read("weights.bin", "60", "64", &[16]).unwrap_err();
    assert!(said.contains("found 64 bytes from byte 60 on"), "{said}");
    assert!(read("weights.bin", "0", "64", &[1 << 60]).is_err());
    assert!(read("missing.bin", "0", "64", &[16]).unwrap_err().contains("missing.bin"));
    assert!(read(".", "0", "64", &[16]).is_err());
}

/// The models that are vendored, whose damaged copies are read below.
fn corpus() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx");
    let entries = fs::read_dir(folder).expect("the corpus is vendored");
    let entries =
        entries.map(|entry| entry.expect("a folder can be listed").path().join("model.onnx"));
    let mut found: Vec<PathBuf> = entries.filter(|path| path.is_file()).collect();
    found.sort();
    assert!(found.len() > 60, "the corpus is where it belongs");
    found
}

/// Reads a model that may be anything: the answer is a graph that verifies or an error.
fn must_not_panic(bytes: Vec<u8>) {
    let Ok(model) = Model::decode(Path::new("none.onnx"), bytes.into()) else { return };
    let Ok(inputs) = model.inputs() else { return };
    let mut binding = Binding::default();
    for name in model.dimensions().unwrap_or_default() {
        binding.sizes.insert(name, 2);
    }
    for (name, ty) in &inputs {
        let dims: Vec<usize> = ty.shape.0.iter().map(|d| d.size().unwrap_or(2)).collect();
        let small = ty.is_addressable()
            && dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).is_some_and(|n| n < 64);
        if small && ty.dtype == DType::I64 {
            let ones = vec![1; dims.iter().product()];
            binding.values.insert(name.clone(), Tensor::from_ints(ty.dtype, dims, &ones));
        }
    }
    if let Ok(graph) = model.graph(&binding) {
        verify(&graph).expect("what is read is well-formed");
    }
}

/// Damage to a file on its way.
#[derive(Clone, Debug)]
enum Damage {
    Byte(prop::sample::Index, u8),
    Bit(prop::sample::Index, u8),
    /// A piece is left out.
    Cut(prop::sample::Index, u8),
    /// A piece comes twice.
    Repeat(prop::sample::Index, u8),
    /// The end is missing.
    End(prop::sample::Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        4 => (at(), any::<u8>()).prop_map(|(at, byte)| Damage::Byte(at, byte)),
        4 => (at(), 0..8u8).prop_map(|(at, bit)| Damage::Bit(at, bit)),
        1 => (at(), 1..32u8).prop_map(|(at, n)| Damage::Cut(at, n)),
        1 => (at(), 1..32u8).prop_map(|(at, n)| Damage::Repeat(at, n)),
        1 => at().prop_map(Damage::End),
    ]
}

fn damaged(mut bytes: Vec<u8>, damages: &[Damage]) -> Vec<u8> {
    for damage in damages {
        if bytes.is_empty() {
            break;
        }
        let length = bytes.len();
        let piece = |at: &prop::sample::Index, n: &u8| {
            let at = at.index(length);
            at..length.min(at + usize::from(*n))
        };
        match damage {
            Damage::Byte(at, byte) => bytes[at.index(length)] = *byte,
            Damage::Bit(at, bit) => bytes[at.index(length)] ^= 1 << bit,
            Damage::Cut(at, n) => drop(bytes.drain(piece(at, n))),
            Damage::Repeat(at, n) => {
                let piece = bytes[piece(at, n)].to_vec();
                bytes.splice(at.index(length)..at.index(length), piece);
            }
            Damage::End(at) => bytes.truncate(at.index(length)),
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn damaged_models_are_errors_in_little_memory_and_never_panics(
        case in any::<prop::sample::Index>(),
        damages in prop::collection::vec(damage(), 1..6),
    ) {
        let corpus = corpus();
        let bytes = damaged(fs::read(&corpus[case.index(corpus.len())]).unwrap(), &damages);
        let before = HEAP.restart_peak().live_bytes;
        must_not_panic(bytes);
        let taken = HEAP.count().peak_bytes.saturating_sub(before);
        prop_assert!(taken < MEMORY, "{taken} bytes");
    }
}

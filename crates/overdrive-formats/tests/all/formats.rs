//! Round trips of every type, files of other writers, and damaged files: an error each time, never
//! a panic.

use overdrive_formats::{
    FormatError, Tensors, load_parameters, npy, npz, read, safetensors, save_parameters, write,
};
use overdrive_ir::{Builder, DType, Init, Tensor, TensorType};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

/// A folder that is removed at the end of its test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("overdrive-formats-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the temporary folder is writable");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One tensor of each type that the format has.
fn examples(without: &[DType]) -> Tensors {
    let one_of_each = DType::ALL.into_iter().filter(|d| !without.contains(d)).map(|dtype| {
        let values: Vec<f64> =
            (0..24).map(|i| if dtype == DType::E8M0 { 2.0 } else { f64::from(i % 3) }).collect();
        (format!("layer.{dtype}"), Tensor::from_f64(dtype, [2usize, 3, 4], &values))
    });
    let empty = ("empty".to_owned(), Tensor::from_f32([0usize, 7], &[]));
    one_of_each.chain([empty, ("scalar".to_owned(), Tensor::scalar(DType::F32, -0.5))]).collect()
}

fn safetensors_examples() -> Tensors {
    examples(&[DType::I4])
}

fn npz_examples() -> Tensors {
    use DType::*;
    examples(&[I4, F8E4M3, F8E5M2, E8M0, F6E2M3, F6E3M2, F4E2M1])
}

fn bytes_of(test: &str, name: &str, tensors: &Tensors) -> Vec<u8> {
    let folder = Folder::new(test);
    let path = folder.0.join(name);
    write(&path, tensors).expect("the examples can be written");
    std::fs::read(path).expect("the file was written")
}

#[test]
fn every_type_round_trips_through_both_formats() {
    let folder = Folder::new("round-trip");
    for (name, tensors) in [("a.safetensors", safetensors_examples()), ("a.npz", npz_examples())] {
        let path = folder.0.join(name);
        write(&path, &tensors).unwrap();
        write(&path, &tensors).unwrap();
        assert_eq!(read(&path).unwrap(), tensors, "{name}");
    }
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 2, "no unfinished file stays behind");
}

/// Header as NumPy writes it, for arrays that our writer does not produce.
fn array(descr: &str, fortran: &str, shape: &str, elements: &[u8]) -> Result<Tensor, FormatError> {
    let header =
        format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n");
    let length = (header.len() as u16).to_le_bytes();
    let bytes = [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), elements].concat();
    npy::decode(Path::new("a.npz"), "x", &mut bytes.as_slice())
}

#[test]
fn arrays_of_other_writers_are_understood() {
    let big_endian = array(">i2", "False", "(3,)", &[0, 1, 0, 2, 255, 255]).unwrap();
    assert_eq!(big_endian.to_ints(), [1, 2, -1]);
    let columns = array("|u1", "True", "(2, 3)", &[1, 4, 2, 5, 3, 6]).unwrap();
    assert_eq!(columns.to_ints(), [1, 2, 3, 4, 5, 6]);
    let truths = array("|b1", "False", "(2,)", &[7, 0]).unwrap();
    assert_eq!(truths, Tensor::from_ints(DType::Bool, [2usize], &[1, 0]));
    assert_eq!(
        array("<f8", "False", "()", &1.5f64.to_le_bytes()).unwrap(),
        Tensor::scalar(DType::F64, 1.5)
    );
}

#[test]
fn what_is_wrong_with_an_array_is_said() {
    for (descr, shape, elements, words) in [
        ("<c8", "(1,)", &[0u8; 8][..], ["an element type", "`<c8`"]),
        ("|O", "(1,)", &[0; 8], ["an element type", "`|O`"]),
        ("", "(1,)", &[0; 8], ["an element type", "``"]),
        ("<f4", "(2,)", &[0; 7], ["8 bytes", "7 bytes"]),
        ("<f4", "(4611686018427387904, 4)", &[], ["addressed", "4611686018427387904"]),
        ("<f4", "(1073741824, 1024)", &[0; 4], ["4398046511104 bytes", "4 bytes"]),
        ("<f4", "(-1,)", &[], ["'descr'", "(-1,)"]),
        ("<f4", "3", &[], ["'descr'", "'shape': 3"]),
    ] {
        let message = array(descr, "False", shape, elements).unwrap_err().to_string();
        assert!(words.iter().all(|w| message.contains(w)), "{message}");
    }
}

fn header(json: &str, data: &[u8]) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes(), json.as_bytes(), data].concat()
}

#[test]
fn what_is_wrong_with_a_safetensors_file_is_said() {
    let good = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let decode = |bytes: &[u8]| safetensors::decode(Path::new("m.safetensors"), bytes.to_vec());
    assert_eq!(decode(&header(good, &[0; 8])).unwrap().len(), 1);
    for (bytes, words) in [
        (vec![1, 2, 3], ["8 bytes", "3 bytes"]),
        (u64::MAX.to_le_bytes().to_vec(), ["at most the 0 bytes", "18446744073709551615"]),
        (header(good, &[0; 7]), ["cover the file", "bytes in all"]),
        (header(good, &[0; 9]), ["cover the file", "bytes in all"]),
        (header(&good.replace("F32", "F33"), &[0; 8]), ["JSON", "F33"]),
        (
            header(&good.replace("F32", "C64").replace("[2]", "[1]"), &[0; 8]),
            ["element type", "C64"],
        ),
        (header(&good.replace("[2]", "[4611686018427387904,8]"), &[0; 8]), ["JSON", "overflow"]),
        (header(&good.replace("[0,8]", "[4,12]"), &[0; 12]), ["offsets", "a"]),
        (header("{", &[]), ["JSON", "header"]),
    ] {
        let message = decode(&bytes).unwrap_err().to_string();
        assert!(words.iter().all(|w| message.contains(w)), "{message}");
        assert!(message.starts_with("m.safetensors: "), "{message}");
    }
}

#[test]
fn two_entries_of_one_name_are_refused() {
    let twice = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
        "a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;
    assert!(safetensors::decode(Path::new("m.safetensors"), header(twice, &[0; 8])).is_err());

    let tensors = ["a", "b"].map(|name| (name.to_owned(), Tensor::scalar(DType::F32, 1.0)));
    let mut bytes = bytes_of("twice", "t.npz", &tensors.into());
    let name = bytes.windows(5).enumerate().filter(|(_, w)| *w == b"b.npy").map(|(at, _)| at);
    for at in name.collect::<Vec<_>>() {
        bytes[at] = b'a';
    }
    let message = npz::decode(Path::new("t.npz"), &bytes).unwrap_err().to_string();
    assert!(message.contains("different names") && message.contains("2 entries"), "{message}");
}

#[test]
fn files_that_cannot_be_are_named_and_nothing_is_left_behind() {
    let folder = Folder::new("impossible");
    let missing = read(&folder.0.join("none.safetensors")).unwrap_err().to_string();
    assert!(missing.contains("cannot open") && missing.contains("none.safetensors"), "{missing}");
    let extension = read(&folder.0.join("weights.pt")).unwrap_err().to_string();
    assert!(
        extension.contains("`.safetensors` or `.npz`") && extension.contains("`.pt`"),
        "{extension}"
    );
    let codes: Tensors = [("q".to_owned(), Tensor::from_ints(DType::I4, [2usize], &[1, 2]))].into();
    for name in ["q.safetensors", "q.npz"] {
        let path = folder.0.join(name);
        let message = write(&path, &codes).unwrap_err().to_string();
        assert!(message.contains("q") && message.contains("i4[2]"), "{message}");
        assert!(!path.exists());
    }
    assert!(write(&folder.0.join("no/such/folder.npz"), &codes).is_err());
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0);
}

#[test]
fn parameters_load_whole_or_with_every_difference_named() {
    let b = Builder::new("tiny");
    let f32s = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let w = b.state("fc.weight", f32s(&[2, 3]), Init::Normal { std: 1.0, seed: 0 });
    let bias = b.state("fc.bias", f32s(&[3]), Init::ZEROS);
    b.output("y", b.input("x", f32s(&[1, 2])).linear(w, Some(bias)));
    let graph = b.finish().unwrap();
    let initial =
        |s: &overdrive_ir::StateDecl| (s.name.clone(), s.init.tensor(&s.name, graph.ty(s.value)));
    let tensors: Tensors = graph.states().iter().map(initial).collect();
    let folder = Folder::new("parameters");
    for name in ["a.safetensors", "a.npz"] {
        let path = folder.0.join(name);
        save_parameters(&graph, &path, &tensors).unwrap();
        assert_eq!(load_parameters(&graph, &path).unwrap(), tensors);
    }
    let mut wrong = tensors.clone();
    wrong.insert("fc.weight".into(), tensors["fc.weight"].convert(DType::F16));
    let bias = wrong.remove("fc.bias").unwrap();
    wrong.insert("fc.offset".into(), bias);
    let path = folder.0.join("b.npz");
    assert!(save_parameters(&graph, &path, &wrong).is_err() && !path.exists());
    write(&path, &wrong).unwrap();
    let message = load_parameters(&graph, &path).unwrap_err().to_string();
    for part in [
        "b.npz: these are not the parameters of `tiny`",
        "1 missing: fc.bias f32[3]",
        "1 unexpected: fc.offset f32[3]",
        "1 of another type: fc.weight expected f32[2, 3], found f16[2, 3]",
    ] {
        assert!(message.contains(part), "{message}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files_give_an_error_or_tensors_and_never_a_panic(
        zipped in any::<bool>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in proptest::option::of(any::<prop::sample::Index>()),
        tail in prop::collection::vec(any::<u8>(), 0..4),
    ) {
        use std::sync::OnceLock;
        static FILES: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
        let files = FILES.get_or_init(|| {
            [
                bytes_of("fuzz", "f.safetensors", &safetensors_examples()),
                bytes_of("fuzz", "f.npz", &npz_examples()),
            ]
        });
        let mut bytes = files[usize::from(zipped)].clone();
        for (at, value) in &flips {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let whole = cut.is_none();
        bytes.extend(&tail);
        let path = Path::new("fuzzed");
        let decoded =
            if zipped { npz::decode(path, &bytes) } else { safetensors::decode(path, bytes) };
        match decoded {
            Ok(tensors) => {
                prop_assert!(tensors.values().all(|t| t.bytes().len() == t.ty().bytes()));
            }
            Err(error) => {
                prop_assert!(!whole || !flips.is_empty() || !tail.is_empty(), "{}", error);
            }
        }
    }

    #[test]
    fn any_bytes_at_all_are_refused_calmly(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(npz::decode(Path::new("any"), &bytes).is_err());
        prop_assert!(npy::decode(Path::new("any"), "x", &mut bytes.as_slice()).is_err());
        prop_assert!(safetensors::decode(Path::new("any"), bytes).is_err());
    }
}

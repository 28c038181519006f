//! Files of ONNX with their weights beside them: each tensor begins on a page and is read back the
//! same. Damage is an error that names the tensor.

use overdrive_formats::FormatError;
use overdrive_formats::onnx::{self, Binding, Dialect, Model, WeightPlace};
use overdrive_ir::{Builder, Graph, Init, Tensor};
use std::fs;
use std::path::Path;

/// Bytes of the weights: one of a page and a little, one of a page, one that stays in the message.
const BYTES: [usize; 3] = [4096 + 1024, 4096, 1020];

fn weight(at: usize) -> Tensor {
    let count = BYTES[at] / 4;
    let values: Vec<f32> = (0..count).map(|i| (i * (at + 1)) as f32).collect();
    Tensor::from_f32([count], &values)
}

fn graph() -> Graph {
    let b = Builder::new("sums");
    for at in 0..BYTES.len() {
        let tensor = weight(at);
        let x = b.input(&format!("x{at}"), tensor.ty().clone());
        let w = b.state_named(&format!("w{at}"), tensor.ty().clone(), Init::Value(tensor));
        b.output(&format!("y{at}"), x + w);
    }
    b.finish().unwrap()
}

fn written(folder: &Path) -> u64 {
    let path = folder.join("m.onnx");
    let file = onnx::made(&path, &graph(), Dialect::Standard).unwrap();
    file.write(&path, WeightPlace::Beside).unwrap()
}

fn read(path: &Path) -> Result<Graph, FormatError> {
    Model::open(path)?.graph(&Binding::default())
}

fn assert_whole(path: &Path) {
    let back = read(path).unwrap();
    for at in 0..BYTES.len() {
        let state = back.states().iter().find(|state| state.name == format!("w{at}")).unwrap();
        assert_eq!(state.init.tensor(&state.name, back.ty(state.value)), weight(at));
    }
}

#[test]
fn weights_stand_beside_the_file_each_from_a_page_on() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = written(folder.path());
    let data = fs::read(folder.path().join("m.onnx.data")).unwrap();
    let expected = [weight(0).bytes(), &[0; 3072], weight(1).bytes()].concat();
    assert_eq!(data, expected);
    let message = fs::read(folder.path().join("m.onnx")).unwrap();
    assert_eq!(bytes, (data.len() + message.len()) as u64);
    let has = |part: &[u8]| message.windows(part.len()).any(|window| window == part);
    assert!(has(b"m.onnx.data") && has(b"8192") && has(weight(2).bytes()));
    assert!(!has(&weight(1).bytes()[..64]));
    assert_whole(&folder.path().join("m.onnx"));
    // Both files go to another folder under the same name.
    let other = folder.path().join("other");
    Model::open(&folder.path().join("m.onnx")).unwrap().copy(&other.join("m.onnx")).unwrap();
    fs::remove_file(folder.path().join("m.onnx.data")).unwrap();
    assert_whole(&other.join("m.onnx"));
}

#[test]
fn damaged_data_are_errors_that_name_the_tensor() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path());
    let [path, data] = ["m.onnx", "m.onnx.data"].map(|name| folder.path().join(name));
    let whole = fs::read(&data).unwrap();
    fs::write(&data, &whole[..whole.len() - 1]).unwrap();
    let said = read(&path).unwrap_err().to_string();
    for part in
        ["tensor `w1`", "within the 12287 bytes of `m.onnx.data`", "4096 bytes from byte 8192"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    fs::remove_file(&data).unwrap();
    let said = read(&path).unwrap_err().to_string();
    for part in ["tensor `w0`", "`m.onnx.data`, which cannot be opened", "keep it beside the model"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    let copied = Model::open(&path).unwrap().copy(&folder.path().join("other/m.onnx"));
    assert!(copied.unwrap_err().to_string().contains("m.onnx.data"));
}

//! Published models in 16 bits: a plain checkpoint that says how its products are. Read again it is
//! the same model, whole, token by token and on several ranks.

use crate::tiny::{DECODERS, backend, model};
use overdrive_decoding::{CachedDecoder, Decoder, LanguageModel};
use overdrive_formats::{Tensors, safetensors};
use overdrive_ir::{Backend, DType, Mesh, Mode, State, Tensor, Tuning};
use overdrive_models::Caches;
use overdrive_passes::{Additions, Evidence, Quantization, QuantizationMode, quantize};
use overdrive_ranks::run;
use overdrive_studies::pretrained::{Coding, Pretrained};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

const TOKENS: [u32; 6] = [5, 9, 2, 7, 3, 11];

/// The model in a mode, and the folder that was written of it, read again.
fn written(model: &Pretrained, mode: &str, folder: &Path) -> [Pretrained; 2] {
    let mode = QuantizationMode::find(mode).unwrap();
    let meant = Quantization { additions: Additions::None, ..mode.quantization() };
    let made = quantize(&model.template().unwrap().graph, &meant, &Evidence::default()).unwrap();
    assert!(made.skipped.is_empty(), "{:?}", made.skipped);
    let coding = Coding::of(mode.name, &made, Value::Null);
    let notes = model.write_quantized(folder, &made.graph, &coding).unwrap();
    assert!(notes.is_empty(), "{notes:?}");
    [model.with_codes(&made.graph, coding), Pretrained::read(folder).unwrap()]
}

/// Logits of the whole sequence at once.
fn whole(model: &Pretrained) -> Tensor {
    let sizes = [("batch".to_owned(), 1), ("tokens".to_owned(), TOKENS.len())].into();
    let graph = model.template().unwrap().graph_of(&sizes).unwrap();
    let backend = backend();
    let mut session =
        backend.compile(&graph, Mode::Compile, &Tuning::default()).unwrap().session().unwrap();
    let mut state = State::initial(&graph, &backend).unwrap();
    let x = Tensor::from_ints(DType::I32, [1, TOKENS.len()], &TOKENS.map(i128::from));
    let inputs = [backend.upload(&x).unwrap()];
    let mut outputs = [backend.output(graph.ty(graph.outputs()[0].value)).unwrap()];
    session.run(state.with(&inputs, &mut outputs)).unwrap().wait().unwrap();
    backend.download(&outputs[0]).unwrap()
}

/// Logits of the last token, with all before it in caches of this format.
fn stepwise(model: &dyn LanguageModel, backend: &dyn Backend, format: DType) -> Vec<f32> {
    let target = (backend, Mode::Compile);
    let mut decoder = CachedDecoder::in_format(target, model, Caches::of_one(16), format).unwrap();
    let [first @ .., last] = &TOKENS;
    decoder.begin(first).unwrap();
    decoder.next(*last).unwrap()
}

fn far([a, b]: [&[f32]; 2]) -> f32 {
    assert_eq!(a.len(), b.len());
    let size = b.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let most = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    most / size
}

fn checkpoint(folder: &Path) -> (Value, Tensors) {
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let tensors = safetensors::read(&folder.join("model.safetensors")).unwrap();
    (serde_json::from_str(&config).unwrap(), tensors)
}

#[test]
fn every_decoder_is_a_plain_checkpoint_and_reads_back() {
    for name in DECODERS {
        let (model, place) = (model(name), tempfile::tempdir().unwrap());
        let folder = place.path().join("half");
        let (mode, half) = if name == "gpt2" { ("f16", DType::F16) } else { ("bf16", DType::BF16) };
        let [made, read] = written(&model, mode, &folder);
        assert_eq!((&read.weights, &read.coding), (&made.weights, &made.coding), "{name}");
        let (config, tensors) = checkpoint(&folder);
        assert!(config.get("quantization_config").is_none(), "{name}");
        let said = if half == DType::F16 { "float16" } else { "bfloat16" };
        assert_eq!(config["dtype"], said, "{name}");
        for (name, tensor) in tensors {
            let is_matrix = tensor.ty().sizes().iter().filter(|size| **size > 1).count() > 1;
            assert!(!is_matrix || tensor.ty().dtype == half, "{name} {}", tensor.ty());
        }
        let outputs = whole(&made);
        assert_eq!(whole(&read).bytes(), outputs.bytes(), "{name}");
        // Products are in 16 bits, unlike those of a checkpoint without our words.
        let off = far([&outputs.to_f32(), &whole(&model).to_f32()]);
        assert!(off > 0.0 && off < 0.1, "{name}: {off}");
        // A step rounds the same operands, in whatever format its caches are.
        let all = outputs.to_f32();
        let last = &all[all.len() - all.len() / TOKENS.len()..];
        for format in [DType::F32, half] {
            let off = far([&stepwise(&read, &backend(), format), last]);
            assert!(off < 0.05, "{name} in {format}: {off}");
        }
        assert_eq!(read.native_half(backend().description()), Some(half), "{name}");
    }
}

#[test]
fn ranks_share_such_a_checkpoint() {
    for name in ["llama", "gpt2"] {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("half");
        let [_, one] = written(&model(name), "bf16", &folder);
        let expected = stepwise(&one, &backend(), DType::BF16);
        let mesh = Mesh::new([("tensor", 2)]);
        let of_rank = |communicator: std::sync::Arc<dyn overdrive_ir::Communicator>| {
            let part = (communicator.mesh(), communicator.rank());
            let model = Pretrained::read_part(&folder, part).unwrap();
            let device = backend().on(std::sync::Arc::clone(&communicator));
            Ok::<_, ()>(stepwise(&model, &device, DType::BF16))
        };
        for found in run(&mesh, Duration::from_secs(60), of_rank) {
            let off = far([&found.unwrap(), &expected]);
            assert!(off < 0.05, "{name}: {off}");
        }
    }
}

//! A decoder with codes in some layers computes the same in a 16-bit format as in f32, but for
//! rounding. Its codes and their scales stay as they are.

use overdrive_cpu::CpuBackend;
use overdrive_decoding::{CachedDecoder, Decoder, LanguageModel};
use overdrive_ir::{DType, Mode};
use overdrive_models::{Caches, Span};
use overdrive_passes::{Additions, Evidence, Quantization, QuantizationMode, quantize};
use overdrive_studies::pretrained::{Coding, Pretrained};
use serde_json::Value;
use std::path::Path;

fn coded(mode: &str) -> Pretrained {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pretrained/llama");
    let model = Pretrained::read(&folder).unwrap();
    let mode = QuantizationMode::find(mode).unwrap();
    let alone = Quantization { additions: Additions::None, ..mode.quantization() };
    let float = model.template().unwrap().graph;
    let made = quantize(&float, &alone, &Evidence::default()).unwrap();
    assert!(!made.layers.is_empty());
    model.with_codes(&made.graph, Coding::of(mode.name, &made, Value::Null))
}

fn logits(model: &Pretrained, format: DType) -> Vec<f32> {
    let cpu = CpuBackend::new(Some(1)).unwrap();
    let target = (&cpu as &dyn overdrive_ir::Backend, Mode::Compile);
    let mut decoder = CachedDecoder::in_format(target, model, Caches::of_one(16), format).unwrap();
    let mut all = decoder.begin(&[5, 9, 2, 7]).unwrap();
    for token in [3, 11, 4] {
        all.extend(decoder.next(token).unwrap());
    }
    all
}

#[test]
fn a_format_beside_codes_only_rounds() {
    // A rounding may move an activation to the next of its codes.
    for (mode, in_f16) in [("int8-dynamic", 0.05), ("int4-rtn", 0.01)] {
        let model = coded(mode);
        let exact = logits(&model, DType::F32);
        let size = exact.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        for (format, share) in [(DType::BF16, 0.05), (DType::F16, in_f16)] {
            let found = logits(&model, format);
            let off = found.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off > 0.0 && off < share * size, "{mode} in {format}: {off} of {size}");
        }
    }
}

#[test]
fn codes_and_scales_keep_their_types() {
    let model = coded("int4-rtn");
    let span = Span::Step { caches: Caches::of_one(16) };
    let [exact, low] =
        [DType::F32, DType::BF16].map(|format| model.unloaded(span, format).unwrap());
    let mut narrowed = 0;
    for (before, now) in exact.states().iter().zip(low.states()) {
        let [before_ty, ty] = [exact.ty(before.value), low.ty(now.value)];
        assert_eq!(before.name, now.name);
        if ty != before_ty {
            assert_eq!(ty.dtype, DType::BF16, "{}", now.name);
            narrowed += 1;
        }
        let is_scale = now.name.contains("_proj") && before_ty.dtype.is_float();
        assert!(!is_scale || ty == before_ty, "{}", now.name);
    }
    // The embedding, and keys and values of each layer.
    assert!(narrowed >= 3, "{narrowed}");
}

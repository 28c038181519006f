//! Tokens that the device chooses are those that the host would choose.

use crate::tiny::{DECODERS, backend, model};
use overdrive_decoding::{CachedDecoder, DecodeError, Decoder, Sampling};
use overdrive_ir::{Backend, DType, Mode};
use overdrive_models::{Caches, Pages};
use std::num::NonZeroUsize;

fn pick(logits: &[f32]) -> u32 {
    Sampling::GREEDY.pick(logits, 0).unwrap()
}

#[test]
fn several_steps_choose_what_the_host_would() {
    let backend = backend();
    for name in DECODERS {
        let model = model(name);
        let new = || CachedDecoder::new((&backend, Mode::Compile), &model, 40).unwrap();
        let prompt: Vec<u32> = (0..9).map(|i| (i * 37 + 11) % 270).collect();
        let (mut stepped, mut chosen) = (new(), new());
        let mut expected = vec![pick(&stepped.begin(&prompt).unwrap())];
        let mut last = Vec::new();
        for _ in 0..12 {
            last = stepped.next(*expected.last().unwrap()).unwrap();
            expected.push(pick(&last));
        }
        let mut made = vec![pick(&chosen.begin(&prompt).unwrap())];
        for steps in [1, 3, 7] {
            made.extend(chosen.likeliest(*made.last().unwrap(), 1, steps).unwrap());
        }
        assert_eq!(made.len(), 12, "{name}");
        assert_eq!(made, expected[..12], "{name}");
        // The host goes on where the device was.
        let found = chosen.next(made[11]).unwrap();
        let off = found.iter().zip(&last).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off <= 1e-4, "{name}: {off}");
    }
}

/// One sequence joins, one pauses; with a block for each, and with pages.
#[test]
fn several_sequences_choose_beside_one_another() {
    let (backend, model) = (backend(), model("llama"));
    let size = NonZeroUsize::new(4).unwrap();
    for pages in [None, Some(Pages { size, count: 16 })] {
        let caches = Caches { pages, ..Caches::of(2, 32) };
        let target = (&backend as &dyn Backend, Mode::Compile);
        let new = || CachedDecoder::in_format(target, &model, caches, DType::F32).unwrap();
        let (mut stepped, mut chosen) = (new(), new());
        let mut last = [None, None];
        for (steps, joins) in [(5, Some(0)), (4, Some(1)), (8, None)] {
            if let Some(at) = joins {
                let prompt: Vec<u32> = (0..3 + at as u32).map(|i| i * 31 + 7).collect();
                let first = pick(&stepped.join(at, &prompt).unwrap());
                assert_eq!(first, pick(&chosen.join(at, &prompt).unwrap()));
                last[at] = Some(first);
            }
            let made = chosen.likeliest_of(&last, steps).unwrap();
            assert_eq!(made.len(), 2 * steps);
            for made in made.chunks(2) {
                let logits = stepped.step(&last).unwrap();
                for (at, row) in logits.chunks(logits.len() / 2).enumerate() {
                    if last[at].is_some() {
                        last[at] = Some(pick(row));
                        assert_eq!(made[at], last[at]);
                    }
                }
            }
        }
    }
}

#[test]
fn no_step_goes_beyond_the_room() {
    let (backend, model) = (backend(), model("gpt2"));
    let mut decoder = CachedDecoder::new((&backend, Mode::Compile), &model, 16).unwrap();
    decoder.begin(&[1; 12]).unwrap();
    let refused = decoder.likeliest(1, 1, 5).unwrap_err();
    assert!(matches!(refused, DecodeError::Full { capacity: 16, found: 17 }), "{refused}");
    assert_eq!(decoder.likeliest(1, 1, 4).unwrap().len(), 4);
}

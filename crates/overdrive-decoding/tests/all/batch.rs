//! Several sequences decoded together give the same as each alone.

use crate::tiny::{DECODERS, backend, model};
use overdrive_bench::clock::SystemClock;
use overdrive_decoding::{
    CachedDecoder, Chooser, Decoder, Limits, Sampling, generate, generate_all,
};
use overdrive_ir::{Backend, DType, Mode};
use overdrive_models::Caches;

/// Sequences of other lengths beside it, which join and leave between its steps, in every format of
/// the caches.
#[test]
fn a_sequence_does_not_see_those_that_are_decoded_beside_it() {
    let backend = backend();
    for (name, format, off) in
        DECODERS.iter().map(|name| (name, DType::F32, 1e-4)).chain([(&"llama", DType::BF16, 0.1)])
    {
        let model = model(name);
        let target = (&backend as &dyn Backend, Mode::Compile);
        let sequence = |seed: u32, len: u32| (0..len).map(|i| (i * 37 + 11 * seed) % 270).collect();
        let sequences: [Vec<u32>; 3] = [sequence(1, 30), sequence(2, 21), sequence(5, 26)];
        let begin = [3, 17, 9];
        let caches = |sequences| Caches::of(sequences, 32);
        let alone: Vec<Vec<Vec<f32>>> = sequences
            .iter()
            .zip(begin)
            .map(|(sequence, begin)| {
                let mut one = CachedDecoder::in_format(target, &model, caches(1), format).unwrap();
                let first = one.begin(&sequence[..begin]).unwrap();
                let rest = sequence[begin..].iter().map(|&token| one.next(token).unwrap());
                [first].into_iter().chain(rest).collect()
            })
            .collect();
        let mut together = CachedDecoder::in_format(target, &model, caches(2), format).unwrap();
        let close = |found: &[f32], which: usize, step: usize| {
            let expected = &alone[which][step];
            let error = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(error <= off, "{name} {format}: sequence {which}, step {step}: {error}");
        };
        // The sequence at each place, and the number of its steps.
        let mut places: [Option<(usize, usize)>; 2] = [None, None];
        let mut waiting = 0..sequences.len();
        loop {
            for (at, place) in places.iter_mut().enumerate() {
                if place.is_none_or(|(which, step)| begin[which] + step == sequences[which].len()) {
                    *place = waiting.next().map(|which| (which, 0));
                    if let Some((which, _)) = *place {
                        let logits = together.join(at, &sequences[which][..begin[which]]).unwrap();
                        close(&logits, which, 0);
                    }
                }
            }
            let token = |place: &Option<(usize, usize)>| {
                place.map(|(which, step)| sequences[which][begin[which] + step])
            };
            let tokens: Vec<Option<u32>> = places.iter().map(token).collect();
            if tokens.iter().all(Option::is_none) {
                break;
            }
            let logits = together.step(&tokens).unwrap();
            for (place, row) in places.iter_mut().zip(logits.chunks(logits.len() / 2)) {
                if let Some((which, step)) = place {
                    *step += 1;
                    close(row, *which, *step);
                }
            }
        }
    }
}

#[test]
fn several_prompts_give_what_each_gives_alone() {
    let (backend, clock, model) = (backend(), SystemClock::new(), model("qwen3"));
    let prompts: Vec<Vec<u32>> =
        (1..6).map(|i| (0..3 * i).map(|j| (7 * i + j) % 200).collect()).collect();
    let sampling = Sampling { temperature: 1.0, seed: 4, ..Sampling::GREEDY };
    let limits = Limits { tokens: 12, ends: &[] };
    let chooser = Chooser::new(&sampling, None);
    let target = (&backend as &dyn Backend, Mode::Compile);
    let caches = Caches::of(2, 32);
    let mut decoder = CachedDecoder::in_format(target, &model, caches, DType::F32).unwrap();
    let mut heard = vec![vec![]; prompts.len()];
    let mut each = |prompt: usize, token| {
        heard[prompt].push(token);
        true
    };
    let made = generate_all((&mut decoder, None), &prompts, (&chooser, &limits), &clock, &mut each)
        .unwrap();
    for (index, (prompt, made)) in prompts.iter().zip(&made).enumerate() {
        let mut one = CachedDecoder::new(target, &model, 32).unwrap();
        let own = Sampling { seed: 4 + index as u64, ..sampling };
        let own = Chooser::new(&own, None);
        let alone = generate(&mut one, prompt, (&own, &limits), &clock, &mut |_| true).unwrap();
        assert_eq!(made.tokens, alone.tokens, "prompt {index}");
        assert_eq!(heard[index], alone.tokens);
        assert_eq!(made.times_ns.len(), 12);
    }
    let mut told = 0;
    let stopped =
        generate_all((&mut decoder, None), &prompts, (&chooser, &limits), &clock, &mut |_, _| {
            told += 1;
            told < 5
        });
    let tokens: usize = stopped.unwrap().iter().map(|made| made.tokens.len()).sum();
    assert_eq!(tokens, told, "nothing is made after the word to end");
}

/// They take turns, each with caches of its own.
#[test]
fn decoders_of_the_same_weights_do_not_see_each_other() {
    let (backend, model) = (backend(), model("llama"));
    let sequences: [Vec<u32>; 2] = [vec![5, 9, 13, 2, 40, 7], vec![200, 3, 77, 8, 1, 30]];
    let new = || CachedDecoder::new((&backend, Mode::Compile), &model, 16).unwrap();
    let logits = |decoder: &mut CachedDecoder<'_>, sequence: &[u32], at: usize| match at {
        0 => decoder.begin(&sequence[..2]).unwrap(),
        at => decoder.next(sequence[at + 1]).unwrap(),
    };
    let alone = sequences.each_ref().map(|sequence| {
        let mut decoder = new();
        (0..5).map(|at| logits(&mut decoder, sequence, at)).collect::<Vec<_>>()
    });
    let mut first = new();
    // A decoder beside another begins with empty caches, whatever that has seen.
    first.begin(&[1, 2, 3]).unwrap();
    let second = first.beside(Mode::Compile, None).unwrap();
    let mut decoders = [first, second];
    assert!(decoders[1].next(1).unwrap_err().to_string().contains("no token"));
    for at in 0..5 {
        for (decoder, (sequence, alone)) in decoders.iter_mut().zip(sequences.iter().zip(&alone)) {
            assert_eq!(logits(decoder, sequence, at), alone[at], "token {at}");
        }
    }
    let mut jit = decoders[0].beside(Mode::Jit, None).unwrap();
    let found = logits(&mut jit, &sequences[0], 0);
    assert!(found.iter().zip(&alone[0][0]).all(|(a, b)| (a - b).abs() < 1e-4));
}

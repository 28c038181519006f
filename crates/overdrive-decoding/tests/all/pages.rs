//! Sequences in pages of a pool give what they give in room of their own.

use crate::tiny::{backend, model};
use overdrive_bench::clock::SystemClock;
use overdrive_decoding::{CachedDecoder, Chooser, Decoder, Limits, Sampling, generate_all};
use overdrive_ir::{Backend, DType, Mode};
use overdrive_models::{CacheCodes, Caches, Pages};
use proptest::prelude::*;
use std::num::NonZeroUsize;

const SEQUENCES: usize = 3;
const CAPACITY: usize = 32;

fn paged(sequences: usize, size: usize, count: usize) -> Caches {
    let pages = Some(Pages { size: NonZeroUsize::new(size).unwrap(), count });
    Caches { pages, ..Caches::of(sequences, CAPACITY) }
}

/// Something that happens to a sequence.
#[derive(Clone, Debug)]
enum Event {
    /// It begins anew with so many tokens.
    Join(usize, usize),
    Leave(usize),
    /// A token for each of these.
    Step([bool; SEQUENCES]),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        2 => (0..SEQUENCES, 1..=CAPACITY).prop_map(|(of, tokens)| Event::Join(of, tokens)),
        1 => (0..SEQUENCES).prop_map(Event::Leave),
        8 => any::<[bool; SEQUENCES]>().prop_map(Event::Step),
    ];
    prop::collection::vec(event, 1..60)
}

/// The decoder's logits in these events, without those of sequences that do not step.
fn logits(decoder: &mut CachedDecoder<'_>, events: &[Event]) -> Vec<Vec<f32>> {
    let mut seen = [0; SEQUENCES];
    let mut all = vec![];
    for (at, event) in (0u32..).zip(events) {
        match *event {
            Event::Join(sequence, tokens) => {
                let prompt: Vec<u32> =
                    (0..tokens as u32).map(|i| (i * 37 + 11 * at) % 270).collect();
                all.push(decoder.join(sequence, &prompt).unwrap());
                seen[sequence] = tokens;
            }
            Event::Leave(sequence) => {
                decoder.leave(sequence);
                seen[sequence] = 0;
            }
            Event::Step(mut steps) => {
                for (step, &seen) in steps.iter_mut().zip(&seen) {
                    *step &= (1..CAPACITY).contains(&seen);
                }
                if !steps.contains(&true) {
                    continue;
                }
                let token = |(of, &steps): (u32, &bool)| steps.then_some((at * 53 + of) % 270);
                let tokens: Vec<Option<u32>> = (0..).zip(&steps).map(token).collect();
                let found = decoder.step(&tokens).unwrap();
                let rows = found.chunks(found.len() / SEQUENCES).zip(steps);
                all.extend(rows.filter(|(_, steps)| *steps).map(|(row, _)| row.to_vec()));
                seen.iter_mut().zip(steps).for_each(|(seen, steps)| *seen += usize::from(steps));
            }
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Bit for bit, and a page that is not given back is missed.
    #[test]
    fn any_order_of_sequences_gives_what_room_of_their_own_gives(
        events in events(),
        name in prop::sample::select(vec!["gpt2", "llama", "gemma2", "qwen2_window"]),
        size in prop::sample::select(vec![1, 4, 16, 32]),
        low in any::<bool>(),
        codes in prop::sample::select(vec![None, Some(CacheCodes::Int8), Some(CacheCodes::Fp8)]),
    ) {
        let (backend, model) = (backend(), model(name));
        let format = if low && name == "llama" { DType::BF16 } else { DType::F32 };
        let target = (&backend as &dyn Backend, Mode::Compile);
        let given = |caches: Caches| {
            let caches = Caches { codes, ..caches };
            let mut decoder = CachedDecoder::in_format(target, &model, caches, format).unwrap();
            logits(&mut decoder, &events)
        };
        let (own, pages) = (Caches::of(SEQUENCES, CAPACITY), SEQUENCES * CAPACITY.div_ceil(size));
        prop_assert_eq!(given(own), given(paged(SEQUENCES, size, pages)));
    }
}

/// A page size that does not divide the capacity, and one sequence.
#[test]
fn a_last_page_may_reach_beyond_the_capacity() {
    let (backend, model) = (backend(), model("llama"));
    let target = (&backend as &dyn Backend, Mode::Compile);
    let sequence: Vec<u32> = (0..CAPACITY as u32).map(|i| (i * 37 + 11) % 270).collect();
    let given = |caches| {
        let mut decoder = CachedDecoder::in_format(target, &model, caches, DType::F32).unwrap();
        let first = decoder.begin(&sequence[..5]).unwrap();
        let rest = sequence[5..].iter().map(|&token| decoder.next(token).unwrap());
        [first].into_iter().chain(rest).collect::<Vec<_>>()
    };
    for (own, pages) in given(Caches::of_one(CAPACITY)).iter().zip(given(paged(1, 7, 5))) {
        assert!(own.iter().zip(&pages).all(|(a, b)| (a - b).abs() < 1e-4));
    }
}

/// Five texts of up to 27 tokens, two at a time: 14 pages hold every two, 7 only one of the long.
#[test]
fn texts_that_wait_for_pages_are_those_that_never_waited() {
    let (backend, clock, model) = (backend(), SystemClock::new(), model("qwen3"));
    let prompts: Vec<Vec<u32>> =
        (1..6).map(|i| (0..3 * i).map(|j| (7 * i + j) % 200).collect()).collect();
    let limits = Limits { tokens: 12, ends: &[] };
    let target = (&backend as &dyn Backend, Mode::Compile);
    let made = |caches| {
        let mut decoder = CachedDecoder::in_format(target, &model, caches, DType::F32).unwrap();
        let all = |decoder: &mut CachedDecoder<'_>, most: usize| {
            let mut told = 0;
            let mut each = |_, _| {
                told += 1;
                told < most
            };
            let chooser = Chooser::new(&Sampling::GREEDY, None);
            let how = (&chooser, &limits);
            let made = generate_all((decoder, None), &prompts, how, &clock, &mut each)?;
            Ok::<_, overdrive_decoding::DecodeError>(
                made.into_iter().map(|text| text.tokens).collect::<Vec<_>>(),
            )
        };
        // A call that ends in the middle keeps no page from the next call.
        all(&mut decoder, 30)?;
        all(&mut decoder, usize::MAX)
    };
    let own = made(Caches::of(2, CAPACITY)).unwrap();
    for count in [14, 10, 7] {
        assert_eq!(made(paged(2, 4, count)).unwrap(), own, "{count} pages");
    }
    let error = made(paged(2, 4, 6)).unwrap_err().to_string();
    assert!(error.contains("27 tokens: expected 7 pages of 4 tokens"), "{error}");
    assert!(error.contains("found 6 of 6"), "{error}");
}

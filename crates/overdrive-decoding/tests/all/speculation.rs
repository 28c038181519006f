//! Tokens that are checked several at a time are those that come one by one.

use crate::tiny::{DECODERS, backend, model};
use overdrive_bench::clock::SystemClock;
use overdrive_decoding::{
    CachedDecoder, Chooser, Continued, DecodeError, Draft, Generated, Limits, LookupDraft,
    ModelDraft, Sampling, Speculation, generate_all,
};
use overdrive_ir::{Backend, DType, Mode};
use overdrive_models::{CacheCodes, Caches, Pages};
use overdrive_studies::pretrained::Pretrained;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;

const DRAWN: Sampling = Sampling { temperature: 1.5, top_k: Some(40), top_p: 0.9, seed: 4 };

fn paged(caches: Caches, size: usize, count: usize) -> Caches {
    Caches { pages: Some(Pages { size: NonZeroUsize::new(size).unwrap(), count }), ..caches }
}

/// Proposes what comes next in texts that are known, but every third time something else.
struct Known {
    texts: Vec<Vec<u32>>,
    wrong: bool,
}

impl Draft for Known {
    fn propose(
        &mut self,
        texts: &[Option<Continued<'_>>],
        _: &Chooser<'_>,
    ) -> Result<Vec<Vec<u32>>, DecodeError> {
        let of = |text: &Option<Continued<'_>>| {
            let Some(of) = text else { return vec![] };
            let right = self.texts[of.prompt].iter().skip(of.made).take(of.most);
            let is_wrong = |at: usize| self.wrong && (of.made + at).is_multiple_of(3);
            right.enumerate().map(|(at, &token)| token ^ u32::from(is_wrong(at))).collect()
        };
        Ok(texts.iter().map(of).collect())
    }
}

/// Logits of several tokens at once are those of one by one. Sequences read different numbers of
/// tokens, pause, take some back, and reach the end of the caches.
#[test]
fn several_tokens_at_once_give_the_logits_of_each() {
    let backend = backend();
    let target = (&backend as &dyn Backend, Mode::Compile);
    let token = |at: usize| (at as u32 * 37 + 11) % 200;
    let own = Caches::of(2, 32);
    let codes = |caches: Caches| Caches { codes: Some(CacheCodes::Int8), ..caches };
    let forms = DECODERS.iter().map(|name| (*name, own));
    let others = [paged(own, 5, 14), codes(own), codes(paged(own, 8, 8))].map(|of| ("llama", of));
    for (name, caches) in forms.chain(others) {
        let model = model(name);
        let new = || CachedDecoder::in_format(target, &model, caches, DType::F32).unwrap();
        let (mut one, mut all) = (new(), new());
        let capacity = one.capacity();
        let mut seen = [5, 9];
        for (sequence, &seen) in seen.iter().enumerate() {
            let prompt: Vec<u32> = (0..seen).map(|at| token(at + sequence)).collect();
            one.join(sequence, &prompt).unwrap();
            all.join(sequence, &prompt).unwrap();
        }
        let reads = [[4, 2], [0, 3], [1, 4], [4, 4], [4, 0], [3, 4], [4, 4], [4, 1], [4, 3]];
        for (round, reads) in reads.into_iter().cycle().enumerate() {
            if seen == [capacity; 2] {
                break;
            }
            let reads = [0, 1].map(|of: usize| reads[of].min(capacity - seen[of]));
            let tokens = [0, 1]
                .map(|of| (0..reads[of]).map(|at| token(seen[of] + of + at)).collect::<Vec<u32>>());
            let found = all.several(&tokens, 4).unwrap();
            let likeliest = {
                (0..2).for_each(|of| all.take_back(of, reads[of]));
                all.likeliest_of_several(&tokens, 4).unwrap()
            };
            let rows: Vec<&[f32]> = found.chunks(found.len() / 8).collect();
            for at in 0..4 {
                let step = [0, 1].map(|of| tokens[of].get(at).copied());
                if step == [None; 2] {
                    break;
                }
                let expected = one.step(&step).unwrap();
                for (of, expected) in expected.chunks(expected.len() / 2).enumerate() {
                    if step[of].is_none() {
                        continue;
                    }
                    let row = rows[4 * of + at];
                    let off = row.iter().zip(expected).map(|(a, b)| (a - b).abs());
                    let off = off.fold(0.0, f32::max);
                    // Codes of sums that differ in their last bits may be neighbours.
                    let most = if caches.codes.is_some() { 0.02 } else { 1e-4 };
                    assert!(off <= most, "{name} {caches:?}: {off}, round {round}, token {at}");
                    assert_eq!(likeliest[4 * of + at], Sampling::GREEDY.pick(row, 0), "{name}");
                }
            }
            // Some are taken back, and read again in the next round.
            let back = reads.map(|count| if round % 2 == 0 { count / 2 } else { 0 });
            for (of, back) in back.into_iter().enumerate() {
                one.take_back(of, back);
                all.take_back(of, back);
                seen[of] += reads[of] - back;
            }
        }
        let full = all.several(&[vec![1], vec![]], 4).unwrap_err();
        assert!(matches!(full, DecodeError::Full { .. }), "{full}");
    }
}

fn made(
    (decoder, speculation): (&mut CachedDecoder<'_>, Option<&mut Speculation<'_>>),
    prompts: &[Vec<u32>],
    (sampling, limits): (&Sampling, &Limits<'_>),
) -> Vec<Vec<u32>> {
    let chooser = Chooser::new(sampling, None);
    let how = (&chooser, limits);
    let clock = SystemClock::new();
    let made: Vec<Generated> =
        generate_all((decoder, speculation), prompts, how, &clock, &mut |_, _| true).unwrap();
    made.into_iter().map(|text| text.tokens).collect()
}

fn prompts() -> Vec<Vec<u32>> {
    (1..6).map(|i| (0..3 * i).map(|j| (7 * i + j) % 200).collect()).collect()
}

/// Every published architecture, with drafts that are right, wrong, or looked up, two texts at a
/// time. Caches end where the longest text does.
#[test]
fn texts_are_the_same_with_a_draft_and_without() {
    let backend = backend();
    let target = (&backend as &dyn Backend, Mode::Compile);
    let prompts = prompts();
    for name in DECODERS {
        let model = model(name);
        let caches = Caches::of(2, 32);
        let mut decoder = CachedDecoder::in_format(target, &model, caches, DType::F32).unwrap();
        for sampling in [Sampling::GREEDY, DRAWN] {
            let limits = Limits { tokens: 17, ends: &[] };
            let plain = made((&mut decoder, None), &prompts, (&sampling, &limits));
            let known = |wrong| Known { texts: plain.clone(), wrong };
            let mut drafts = [
                Speculation::new(known(false), 4),
                Speculation::new(known(true), 3),
                Speculation::new(LookupDraft, 5),
            ];
            for (at, draft) in drafts.iter_mut().enumerate() {
                let found = made((&mut decoder, Some(draft)), &prompts, (&sampling, &limits));
                assert_eq!(found, plain, "{name}, draft {at}, {sampling:?}");
            }
            let counts = drafts.each_ref().map(Speculation::counts);
            assert!(counts[0].accepted == counts[0].proposed && counts[0].runs > 0, "{counts:?}");
            assert!(counts[1].accepted < counts[1].proposed, "{counts:?}");
            assert!(drafts[0].tokens_per_run().unwrap() > 3.0, "{counts:?}");
            // An end within a run that is right.
            let ends = [plain[4][9]];
            let limits = Limits { tokens: 17, ends: &ends };
            let ended = made((&mut decoder, None), &prompts, (&sampling, &limits));
            let mut draft = Speculation::new(known(false), 4);
            let found = made((&mut decoder, Some(&mut draft)), &prompts, (&sampling, &limits));
            assert_eq!(found, ended, "{name}, {sampling:?}");
            assert!(ended[4].len() < 10);
        }
    }
}

/// With pages that run out, and with codes in the cache.
#[test]
fn a_draft_makes_no_text_wait_for_pages() {
    let (backend, model) = (backend(), model("qwen3"));
    let target = (&backend as &dyn Backend, Mode::Compile);
    let (prompts, limits) = (prompts(), Limits { tokens: 12, ends: &[] });
    for codes in [None, Some(CacheCodes::Fp8)] {
        for count in [14, 10, 7] {
            let caches = Caches { codes, ..paged(Caches::of(2, 32), 4, count) };
            let mut decoder = CachedDecoder::in_format(target, &model, caches, DType::F32).unwrap();
            let how = (&Sampling::GREEDY, &limits);
            let plain = made((&mut decoder, None), &prompts, how);
            let known = Known { texts: plain.clone(), wrong: true };
            let mut draft = Speculation::new(known, 4);
            let found = made((&mut decoder, Some(&mut draft)), &prompts, how);
            assert_eq!(found, plain, "{count} pages, {codes:?}");
            assert!(draft.counts().accepted > 0);
        }
    }
}

fn draft_of<'a>(
    model: &'a Pretrained,
    target: (&'a dyn Backend, Mode),
    caches: Caches,
) -> ModelDraft<'a> {
    ModelDraft::new(CachedDecoder::in_format(target, model, caches, DType::F32).unwrap())
}

/// The model as its own draft is always right, and caches of codes make it wrong now and then. A
/// draft with shorter caches stops before the end. Another model is hardly ever right.
#[test]
fn a_draft_model_changes_no_token() {
    let (backend, model, other) = (backend(), model("qwen3"), crate::tiny::model("llama"));
    let target = (&backend as &dyn Backend, Mode::Compile);
    let (prompts, limits) = (prompts(), Limits { tokens: 17, ends: &[] });
    let own = Caches::of(2, 32);
    let coded = Caches { codes: Some(CacheCodes::Int8), ..own };
    for sampling in [Sampling::GREEDY, DRAWN] {
        let mut decoder = CachedDecoder::in_format(target, &model, own, DType::F32).unwrap();
        let plain = made((&mut decoder, None), &prompts, (&sampling, &limits));
        let mut kept = vec![];
        for (of, caches) in
            [(&model, own), (&model, coded), (&model, Caches::of(2, 16)), (&other, own)]
        {
            let mut draft = Speculation::new(draft_of(of, target, caches), 3);
            let found = made((&mut decoder, Some(&mut draft)), &prompts, (&sampling, &limits));
            assert_eq!(found, plain, "{sampling:?}, {caches:?}");
            kept.push(draft.counts());
        }
        assert_eq!(kept[0].accepted, kept[0].proposed, "{kept:?}");
        assert!(kept[1].accepted * 2 > kept[1].proposed, "{kept:?}");
        assert!(kept[2].proposed < kept[0].proposed && kept[2].accepted > 0, "{kept:?}");
        assert!(kept[3].accepted * 2 < kept[3].proposed, "{kept:?}");
    }
}

/// Draws one of the likeliest tokens by a rule that knows no seed, and so is right now and then.
struct Guess(BTreeMap<Vec<u32>, Vec<u32>>, usize);

impl Draft for Guess {
    fn propose(
        &mut self,
        texts: &[Option<Continued<'_>>],
        _: &Chooser<'_>,
    ) -> Result<Vec<Vec<u32>>, DecodeError> {
        let mut of = |of: &Continued<'_>| {
            let mut text = of.text.to_vec();
            for _ in 0..of.most {
                let Some(next) = self.0.get(&text[PROMPT.len()..]) else { break };
                self.1 += 1;
                text.push(next[self.1 * 7 / 3 % next.len()]);
            }
            text[of.text.len()..].to_vec()
        };
        Ok(texts.iter().map(|text| text.as_ref().map_or(vec![], &mut of)).collect())
    }
}

const PROMPT: [u32; 3] = [5, 9, 13];
const LEFT: usize = 3;
const DEPTH: usize = 3;

/// All texts of three tokens, each of the three likeliest ones, against the product of the model's
/// probabilities: chi square.
#[test]
fn drawn_texts_have_the_probabilities_of_the_model() {
    let (backend, model) = (backend(), model("llama"));
    let target = (&backend as &dyn Backend, Mode::Compile);
    let (temperature, top_k) = (0.5, Some(LEFT));
    // Probabilities of each text, and the tokens that may follow each beginning.
    let mut one = CachedDecoder::new(target, &model, 16).unwrap();
    let mut exact = BTreeMap::from([(vec![], 1.0)]);
    let mut next = BTreeMap::new();
    for _ in 0..DEPTH {
        let mut longer = BTreeMap::new();
        for (text, p) in exact {
            let logits = one.join(0, &[&PROMPT[..], &text[..]].concat()).unwrap();
            let mut order: Vec<u32> = (0..logits.len() as u32).collect();
            order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
            order.truncate(LEFT);
            let weight = |&token: &u32| (f64::from(logits[token as usize]) / temperature).exp();
            let total: f64 = order.iter().map(weight).sum();
            for token in &order {
                let all = [&text[..], &[*token]].concat();
                longer.insert(all, p * weight(token) / total);
            }
            next.insert(text, order);
        }
        exact = longer;
    }
    const TEXTS: usize = 3000;
    let prompts = vec![PROMPT.to_vec(); TEXTS];
    let sampling = Sampling { temperature, top_k, top_p: 1.0, seed: 77 };
    let mut decoder =
        CachedDecoder::in_format(target, &model, Caches::of(8, 16), DType::F32).unwrap();
    let limits = Limits { tokens: DEPTH, ends: &[] };
    let mut draft = Speculation::new(Guess(next, 0), DEPTH);
    let found = made((&mut decoder, Some(&mut draft)), &prompts, (&sampling, &limits));
    let counts = draft.counts();
    assert!(counts.accepted * 10 > counts.proposed, "{counts:?}");
    assert!(counts.accepted * 10 < 9 * counts.proposed, "{counts:?}");
    let mut times: BTreeMap<Vec<u32>, usize> = BTreeMap::new();
    found.into_iter().for_each(|text| *times.entry(text).or_default() += 1);
    assert!(times.keys().all(|text| exact.contains_key(text)), "only the likeliest are drawn");
    let of = |(text, p): (&Vec<u32>, &f64)| {
        let expected = p * TEXTS as f64;
        let count = times.get(text).copied().unwrap_or(0) as f64;
        (expected, (count - expected).powi(2) / expected)
    };
    let cells: Vec<(f64, f64)> = exact.iter().map(of).collect();
    assert!(cells.iter().all(|(expected, _)| *expected > 5.0), "{cells:?}");
    let chi_square: f64 = cells.iter().map(|(_, part)| part).sum();
    // 26 degrees of freedom; 0.1 % of all seeds are beyond 54.1.
    assert!(chi_square < 54.1, "{chi_square}: {cells:?}");
}

//! Steps over a cache of codes give what its definition gives, and the cache is as small as it
//! says.

use crate::tiny::{DECODERS, backend, model};
use overdrive_decoding::{CachedDecoder, LanguageModel};
use overdrive_ir::eval::{States, eval};
use overdrive_ir::{Array, Backend, DType, Mode, Tensor};
use overdrive_models::{CacheCodes, Caches, Span};
use overdrive_passes::{bind, code_caches};
use overdrive_studies::pretrained::Pretrained;
use std::collections::BTreeMap;

const CAPACITY: usize = 32;
const PROMPT: usize = 9;
const STEPS: usize = 12;
const CODES: [CacheCodes; 2] = [CacheCodes::Int8, CacheCodes::Fp8];

fn tokens() -> Vec<u32> {
    (0..PROMPT + STEPS).map(|i| (i as u32 * 37 + 11) % 270).collect()
}

fn caches(codes: Option<CacheCodes>) -> Caches {
    Caches { codes, ..Caches::of_one(CAPACITY) }
}

/// Logits after the prompt and after each token behind it, and the bytes of the cache.
fn decoded(model: &Pretrained, codes: Option<CacheCodes>, format: DType) -> (Vec<Vec<f32>>, u64) {
    let backend = backend();
    let target = (&backend as &dyn Backend, Mode::Compile);
    let mut decoder = CachedDecoder::in_format(target, model, caches(codes), format).unwrap();
    let tokens = tokens();
    let mut all = vec![decoder.join(0, &tokens[..PROMPT]).unwrap()];
    all.extend(tokens[PROMPT..].iter().map(|&token| decoder.step(&[Some(token)]).unwrap()));
    (all, decoder.cache_bytes())
}

/// The same by the definition, in f64, on caches that a prompt of f64 left.
fn defined(model: &Pretrained, codes: CacheCodes) -> Vec<Vec<f64>> {
    let caches = caches(Some(codes));
    let graph = |span| model.graph(span, DType::F32).unwrap();
    let [prefill, step] = [Span::Prefill { tokens: 16, caches }, Span::Step { caches }].map(graph);
    let mut states = States::new();
    let mut call = |graph: &_, ids: &[u32], position: usize| {
        let ids: Vec<i128> = ids.iter().map(|&id| id.into()).collect();
        let ids = Tensor::from_ints(DType::I32, [1, ids.len()], &ids);
        let position = Tensor::scalar(DType::I64, position as f64);
        let given = [&ids, &position].map(Array::from);
        eval(graph, &given, &mut states).remove(0).floats().to_vec()
    };
    let tokens = tokens();
    let mut prompt = tokens[..PROMPT].to_vec();
    prompt.resize(16, 0);
    let mut all = vec![call(&prefill, &prompt, PROMPT - 1)];
    let steps = (PROMPT..).zip(&tokens[PROMPT..]);
    all.extend(steps.map(|(position, &token)| call(&step, &[token], position)));
    all
}

/// `|a - b| / |b|`.
fn distance(a: &[f32], b: &[f64]) -> f64 {
    let pairs = a.iter().map(|&x| f64::from(x)).zip(b);
    let (error, size) =
        pairs.fold((0.0, 0.0), |(error, size), (a, b)| (error + (a - b) * (a - b), size + b * b));
    f64::sqrt(error / size)
}

/// A sum whose last bits differ may round to the next code. A few codes of hundreds then move
/// logits by a part of what all of them do: the distance to a float cache.
#[test]
fn steps_are_those_of_the_definition() {
    for name in DECODERS {
        let model = model(name);
        let (float, _) = decoded(&model, None, DType::F32);
        for codes in CODES {
            let (found, _) = decoded(&model, Some(codes), DType::F32);
            assert_eq!(found[0], float[0], "{name}: a prompt reads no cache");
            let expected = defined(&model, codes);
            // Over all steps, whose rounding errors are apart.
            let mut squares = [0.0; 2];
            for (at, expected) in expected.iter().enumerate() {
                let [error, moved] = [&found[at], &float[at]].map(|of| distance(of, expected));
                squares[0] += error * error;
                squares[1] += moved * moved;
            }
            let [error, moved] = squares.map(f64::sqrt);
            assert!(error < 0.5 * moved, "{name} {codes:?}: {error:e} of {moved:e}");
            assert!(moved > 1e-4, "{name} {codes:?}: codes round nothing");
        }
    }
}

/// `optimize` judges a cache by whole sequences, since steps take a call for each token.
#[test]
fn a_whole_sequence_that_reads_codes_is_decoded_from_its_first_token() {
    let tokens = tokens();
    let sizes = BTreeMap::from([("batch".to_owned(), 1), ("tokens".to_owned(), tokens.len())]);
    let ids = |tokens: &[u32]| {
        let ids: Vec<i128> = tokens.iter().map(|&id| id.into()).collect();
        Tensor::from_ints(DType::I32, [1, ids.len()], &ids)
    };
    for name in DECODERS {
        let model = model(name);
        let whole = bind(&model.graph(Span::Whole, DType::F32).unwrap(), &sizes).unwrap();
        let logits = |graph: &_| {
            let given = [Array::from(&ids(&tokens))];
            eval(graph, &given, &mut States::new()).remove(0).floats().to_vec()
        };
        let float: Vec<f32> = logits(&whole).iter().map(|&logit| logit as f32).collect();
        for codes in CODES {
            let (coded, count) = code_caches(&whole, codes.rows()).unwrap();
            assert!(count > 0, "{name} has attention");
            let expected = logits(&coded);
            let step = model.graph(Span::Step { caches: caches(Some(codes)) }, DType::F32).unwrap();
            let mut states = States::new();
            let found = tokens.iter().enumerate().flat_map(|(position, &token)| {
                let place = Tensor::scalar(DType::I64, position as f64);
                let given = [&ids(&[token]), &place].map(Array::from);
                let logits = eval(&step, &given, &mut states).remove(0).floats().to_vec();
                logits.into_iter().map(|logit| logit as f32)
            });
            let found: Vec<f32> = found.collect();
            let [error, moved] = [&found, &float].map(|of| distance(of, &expected));
            assert!(error < 0.01 * moved, "{name} {codes:?}: {error:e} of {moved:e}");
            assert!(moved > 1e-4, "{name} {codes:?}: codes round nothing");
        }
    }
}

/// A code for each number and four bytes of scale for each row, beside the format of the float
/// cache. Scales stay f32 where everything else is bf16.
#[test]
fn a_cache_of_codes_takes_the_bytes_of_codes_and_scales() {
    let model = model("llama");
    let of = |codes, format| decoded(&model, codes, format).1;
    let wide = of(None, DType::F32);
    assert_eq!(of(None, DType::BF16), wide / 2);
    let graph = model.graph(Span::Step { caches: caches(None) }, DType::F32).unwrap();
    let key = graph.states().iter().find(|state| state.name == "cache.0.key").unwrap();
    let depth = graph.ty(key.value).sizes()[3] as u64;
    for (codes, format) in
        CODES.into_iter().flat_map(|codes| [(codes, DType::F32), (codes, DType::BF16)])
    {
        assert_eq!(of(Some(codes), format), wide / 4 + wide / depth, "{codes:?} {format}");
    }
}

//! Ranks that share the layers of a decoder. Each holds its part of the weights and of the caches,
//! and their tokens are those of one rank.

use crate::tiny::{DECODERS, backend, folder, model};
use overdrive_bench::clock::SystemClock;
use overdrive_decoding::{
    CachedDecoder, Chooser, LanguageModel, Limits, Sampling, generate, generate_all,
};
use overdrive_ir::{Backend, DType, Mesh, Mode};
use overdrive_models::{CacheCodes, Caches, Span};
use overdrive_ranks::run;
use overdrive_studies::pretrained::Pretrained;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const TOKENS: usize = 12;

fn mesh(ranks: usize) -> Mesh {
    Mesh::new([("tensor", ranks)])
}

fn prompts() -> Vec<Vec<u32>> {
    (1..4).map(|i| (0..2 * i).map(|j| (7 * i + j) % 200).collect()).collect()
}

/// Tokens of one text, and of several together.
fn tokens(
    (model, codes): (&Pretrained, Option<CacheCodes>),
    backend: &dyn Backend,
    chooser: &Chooser<'_>,
) -> Vec<Vec<u32>> {
    let (clock, prompts) = (SystemClock::new(), prompts());
    let target = (backend, Mode::Compile);
    let how = (chooser, &Limits { tokens: TOKENS, ends: &[] });
    let of = |caches: Caches| {
        let caches = Caches { codes, ..caches };
        CachedDecoder::in_format(target, model, caches, DType::F32).unwrap()
    };
    let mut one = of(Caches::of_one(32));
    let text = generate(&mut one, &prompts[2], how, &clock, &mut |_| true).unwrap();
    let mut several = of(Caches::of(2, 32));
    let texts =
        generate_all((&mut several, None), &prompts, how, &clock, &mut |_, _| true).unwrap();
    [text].into_iter().chain(texts).map(|text| text.tokens).collect()
}

/// The tokens that each of some ranks has.
fn tokens_of_ranks((name, codes): (&str, Option<CacheCodes>), ranks: usize) -> Vec<Vec<Vec<u32>>> {
    let of_rank = |communicator: std::sync::Arc<dyn overdrive_ir::Communicator>| {
        let part = (communicator.mesh(), communicator.rank());
        let model = Pretrained::read_part(&folder(name), part).unwrap();
        let device = backend().on(std::sync::Arc::clone(&communicator));
        let chooser = Chooser::new(&Sampling::GREEDY, Some(communicator.as_ref()));
        Ok::<_, ()>(tokens((&model, codes), &device, &chooser))
    };
    run(&mesh(ranks), PATIENCE, of_rank).into_iter().map(Result::unwrap).collect()
}

/// Decoders with one head of keys and values, which no two ranks share.
const OF_ONE_KEY_HEAD: [&str; 2] = ["phi3", "phi_norms"];

/// The tokens that one rank has.
fn tokens_of_one(name: &str, codes: Option<CacheCodes>) -> Vec<Vec<u32>> {
    tokens((&model(name), codes), &backend(), &Chooser::new(&Sampling::GREEDY, None))
}

#[test]
fn ranks_have_the_tokens_of_one() {
    for name in DECODERS.into_iter().filter(|name| !OF_ONE_KEY_HEAD.contains(name)) {
        let one = tokens_of_one(name, None);
        for found in tokens_of_ranks((name, None), 2) {
            assert_eq!(found, one, "{name}");
        }
    }
    let one = tokens_of_one("gpt2", None);
    for found in tokens_of_ranks(("gpt2", None), 4) {
        assert_eq!(found, one);
    }
}

/// Each rank has the codes and the scales of its heads.
#[test]
fn ranks_share_a_cache_of_codes() {
    for codes in [CacheCodes::Int8, CacheCodes::Fp8] {
        for name in ["llama", "gpt2"] {
            let one = tokens_of_one(name, Some(codes));
            for found in tokens_of_ranks((name, Some(codes)), 2) {
                assert_eq!(found, one, "{name} {codes:?}");
            }
        }
    }
}

/// Bytes of the states of a graph whose names begin so, or do not.
fn bytes((model, codes): (&Pretrained, Option<CacheCodes>), of_caches: bool) -> usize {
    let caches = Caches { codes, ..Caches::of_one(16) };
    let graph = model.unloaded(Span::Step { caches }, DType::F32).unwrap();
    let states = graph.states().iter().filter(|s| s.name.starts_with("cache.") == of_caches);
    states.map(|state| graph.ty(state.value).bytes()).sum()
}

/// GPT-2's joined projection is split too. Its table of 64 positions and its norms stay whole.
#[test]
fn a_rank_holds_its_part_of_weights_and_caches() {
    for (name, ranks) in [("llama", 2), ("gpt2", 2), ("gpt2", 4)] {
        let whole = model(name);
        for rank in 0..ranks {
            let part = Pretrained::read_part(&folder(name), (&mesh(ranks), rank)).unwrap();
            for codes in [None, Some(CacheCodes::Int8)] {
                let all = bytes((&whole, codes), true);
                assert_eq!(bytes((&part, codes), true) * ranks, all, "{name} {codes:?}");
            }
            let read: usize = part.weights.values().map(|weight| weight.ty().elements()).sum();
            let all: usize = whole.weights.values().map(|weight| weight.ty().elements()).sum();
            let norms: usize = whole
                .weights
                .values()
                .map(|weight| {
                    let ty = weight.ty();
                    if ty.rank() == 1 || ty.sizes() == [64, 16] { ty.elements() } else { 0 }
                })
                .sum();
            let vocabulary = if 270 % ranks == 0 { 0 } else { 270 * 16 };
            let most = (all - norms - vocabulary).div_ceil(ranks) + norms + vocabulary;
            assert!(read <= most, "{name}: {read} of {all}, at most {most}");
            assert_eq!(
                4 * read,
                bytes((&part, None), false),
                "what is read is what the graph holds"
            );
        }
    }
}

#[test]
fn ranks_know_whether_they_have_parts_of_one_model() {
    let digest = |name: &str, rank: usize| {
        let part = Pretrained::read_part(&folder(name), (&mesh(2), rank)).unwrap();
        part.digest().unwrap().to_owned()
    };
    assert_eq!(digest("llama", 0), digest("llama", 1));
    assert_ne!(digest("llama", 0), digest("mistral", 0));
    assert!(model("llama").digest().is_none());
}

#[test]
fn a_part_is_refused_that_cannot_be() {
    let refused = |name: &str, ranks: usize| {
        let read = Pretrained::read_part(&folder(name), (&mesh(ranks), 0));
        read.err().unwrap().to_string()
    };
    let text = refused("llama", 4);
    assert!(text.contains("divide the 2 heads of keys and values, found 4"), "{text}");
    assert!(text.contains("1, 2 divide all"), "{text}");
    let text = refused("gpt2", 3);
    assert!(text.contains("divide the 4 heads of attention, found 3"), "{text}");
    assert!(refused("bert", 2).contains("found an encoder"));
    let part = Pretrained::read_part(&folder("llama"), (&mesh(2), 1)).unwrap();
    assert!(part.template().unwrap_err().to_string().contains("found the part of one rank"));
}

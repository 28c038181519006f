//! Mutated files and mutated command lines: refused or done, never a panic.

use crate::invocation::Folder;
use overdrive::ir::Tensor;
use proptest::prelude::*;
use std::fs;

/// Words that command lines are made of; none of them starts long work, and every path is below the
/// test's folder.
const WORDS: &[&str] = &[
    "models",
    "info",
    "completions",
    "eval",
    "profile",
    "bash",
    "digits-mlp",
    "digits-conv",
    "gpt-9t",
    "--inputs",
    "good.npz",
    "good.safetensors",
    "absent.npz",
    "--expect",
    "--parameters",
    "--output",
    "out.npz",
    "out.txt",
    "-o",
    "--json",
    "--calls",
    "1",
    "0",
    "-1",
    "--threads",
    "--batch",
    "2",
    "--mode",
    "jit",
    "eager",
    "graph",
    "--seed",
    "99999999999999999999",
    "--rtol",
    "inf",
    "--device",
    "cpu",
    "tpu",
    "--trace",
    "good.npz/below",
    "--",
    "",
    "ünï",
];

/// A byte of a file, somewhere, becomes another; or a piece is left out.
#[derive(Clone, Debug)]
enum Mutation {
    Byte(prop::sample::Index, u8),
    Cut(prop::sample::Index, u8),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        4 => (any::<prop::sample::Index>(), any::<u8>())
            .prop_map(|(at, byte)| Mutation::Byte(at, byte)),
        1 => (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, n)| Mutation::Cut(at, n)),
    ]
}

fn mutate(mut bytes: Vec<u8>, mutations: &[Mutation]) -> Vec<u8> {
    for mutation in mutations {
        if bytes.is_empty() {
            break;
        }
        match mutation {
            Mutation::Byte(at, byte) => {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Mutation::Cut(at, n) => {
                let at = at.index(bytes.len());
                bytes.drain(at..bytes.len().min(at + usize::from(*n)));
            }
        }
    }
    bytes
}

fn few() -> ProptestConfig {
    // A process per case; a failing case is small enough without a file that remembers it.
    ProptestConfig {
        cases: 64,
        failure_persistence: None,
        max_shrink_iters: 64,
        ..ProptestConfig::default()
    }
}

/// The bytes of a file that holds one tensor for `digits-mlp`.
fn good(name: &str, tensor: &str) -> Vec<u8> {
    let width = if tensor == "x" { 64 } else { 10 };
    let folder = Folder::new();
    fs::read(folder.tensors(name, &[(tensor, Tensor::from_f32([1, width], &vec![0.5; width]))]))
        .unwrap()
}

proptest! {
    #![proptest_config(few())]

    #[test]
    fn mutated_files_are_read_or_refused(
        name in prop::sample::select(vec!["x.npz", "x.safetensors"]),
        mutations in prop::collection::vec(mutation(), 1..4),
        (tensor, place) in prop::sample::select(vec![("x", "--inputs"), ("y", "--inputs good.npz \
                                                            --expect")]),
    ) {
        let folder = Folder::new();
        fs::write(folder.path("good.npz"), good("good.npz", "x")).unwrap();
        fs::write(folder.path(name), mutate(good(name, tensor), &mutations)).unwrap();
        let outcome = folder.line(&format!("eval digits-mlp --threads 1 -o out.npz {place} \
                                            {name}"));
        // 4: the mutation may have hit a value.
        prop_assert!([0, 2, 4].contains(&outcome.code), "{outcome:?}");
        prop_assert_eq!(folder.path("out.npz").exists(), outcome.code != 2, "{:?}", outcome);
    }

    #[test]
    fn random_command_lines_are_done_or_refused(
        words in prop::collection::vec(prop::sample::select(WORDS), 0..9),
    ) {
        let folder = Folder::new();
        fs::write(folder.path("good.npz"), good("good.npz", "x")).unwrap();
        fs::write(folder.path("good.safetensors"), good("good.safetensors", "x")).unwrap();
        let outcome = folder.overdrive(&words);
        prop_assert!([0, 2, 3, 4].contains(&outcome.code), "{outcome:?}");
    }

    #[test]
    fn good_command_lines_with_one_word_changed_are_done_or_refused(
        line in prop::sample::select(vec![
            "eval digits-mlp --inputs good.npz --expect good.npz --mode jit --threads 1 -o out.npz",
            "profile digits-mlp --calls 1 --batch 2 --threads 1 --trace out.json --json",
            "models --json",
            "completions bash",
        ]),
        at in any::<prop::sample::Index>(),
        word in prop::sample::select(WORDS),
    ) {
        let folder = Folder::new();
        fs::write(folder.path("good.npz"), good("good.npz", "x")).unwrap();
        let mut words: Vec<&str> = line.split(' ').collect();
        let at = at.index(words.len());
        words[at] = word;
        let outcome = folder.overdrive(&words);
        prop_assert!([0, 2, 3, 4].contains(&outcome.code), "{outcome:?}");
        let kept = fs::read(folder.path("good.npz")).unwrap();
        let named_as_output = at > 0 && ["-o", "--output", "--trace"].contains(&words[at - 1]);
        prop_assert!(named_as_output || kept == good("good.npz", "x"), "an input was overwritten: \
                                                            {outcome:?}");
    }
}

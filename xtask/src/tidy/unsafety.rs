//! `unsafe` lives only where the machine itself asks for it. The compiler denies it everywhere
//! (`unsafe_code` in the workspace lints); this list keeps an `allow` from spreading to a file
//! where nobody expects one.

use super::rule::{Finding, Rule};
use super::tree::Tree;

/// Places where `unsafe` is allowed: a file or a folder, and the reason.
const ALLOWED: &[(&str, &str)] = &[
    ("crates/overdrive-cpu/src/", "SIMD intrinsics and the buffers that threads share"),
    ("crates/overdrive-cuda/src/", "the driver, launches and device memory"),
    ("crates/overdrive-cuda/tests/", "a kernel that faults"),
    ("crates/overdrive-cuda/benches/", "launches of single kernels"),
    ("crates/overdrive-cpu/tests/", "the counting allocator"),
    ("crates/overdrive-bench/src/memory/heap.rs", "the counting allocator"),
    ("crates/overdrive-files/src/mapped.rs", "files that the system maps into memory"),
    ("crates/overdrive-cpu/benches/", "the foreign GEMMs that are measured beside ours"),
    ("crates/overdrive-ranks/src/mpi/wire.rs", "the buffers that MPI holds"),
    ("crates/overdrive-foreign/src/", "the entry points of other people's libraries"),
];

pub(super) const RULE: Rule = Rule { name: "unsafe", check };

fn check(tree: &Tree) -> Vec<Finding> {
    let places: Vec<String> =
        ALLOWED.iter().map(|(path, reason)| format!("{path} ({reason})")).collect();
    let mut findings = Vec::new();
    for file in
        tree.rust().filter(|file| !ALLOWED.iter().any(|(path, _)| file.path.starts_with(path)))
    {
        for token in file.tokens().iter().filter(|token| token.text == "unsafe") {
            let message = format!("`unsafe` is allowed only in {}", places.join(", "));
            findings.push(Finding::line(&file.path, token.line, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "//! A.\nfn f(p: *const u8) -> u8 {\n    unsafe { *p }\n}\n";

    #[test]
    fn unsafe_outside_its_places_is_refused() {
        let findings = check(&Tree::of(&[("crates/overdrive-ir/src/graph.rs", CODE)]));
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, Some(3));
        assert_eq!(check(&Tree::of(&[("src/a.rs", "#[unsafe(no_mangle)]\nfn f() {}")])).len(), 1);
    }

    #[test]
    fn its_places_and_mere_words_pass() {
        let talk =
            "//! Nothing unsafe.\n#![forbid(unsafe_code)]\nconst S: &str = \"unsafe\"; // unsafe\n";
        assert_eq!(
            check(&Tree::of(&[
                ("crates/overdrive-cpu/src/simd/avx2.rs", CODE),
                ("src/a.rs", talk)
            ])),
            []
        );
    }
}

//! A run that is killed, again and again and at any point, ends in the bits of one that is not.

#![cfg(unix)]

use crate::invocation::Folder;
use crate::signals::Underway;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

/// Calls that are killed, each after a share of the time of a whole run. The share is drawn, from
/// seeds 0 and 100 on, and at most the second number.
const CALLS: u64 = 6;
const LATEST: f64 = 0.6;

/// Two batches a step. Looks, after which there is a checkpoint, are every 50 of 200 steps.
const LINES: [&str; 2] = [
    "--precision bf16 --accumulate 2 --moments fp8 --seed 3",
    "--precision fp8 --accumulate 2 --patience 9 --seed 4",
];

/// A number in [0, 1), by splitmix64.
fn drawn(seed: u64) -> f64 {
    let mut z = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// The files of a model's folder but for those of this call: its times and its checksums. The
/// command is the same but for `--resume`.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() || name == "results.json" || name == overdrive::files::MANIFEST {
            continue;
        }
        let mut bytes = fs::read(entry.path()).unwrap();
        if name.ends_with(".json") {
            bytes = String::from_utf8(bytes).unwrap().replace(" --resume", "").into_bytes();
        }
        files.insert(name, bytes);
    }
    files
}

#[test]
fn a_run_that_is_killed_at_any_point_ends_in_the_same_bits() {
    for (number, options) in LINES.into_iter().enumerate() {
        let folder = Folder::new();
        let model = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../overdrive-studies/tests/pretrained/llama");
        let words = "the hand and the tin in a thin band; another hand than the other. ";
        fs::write(folder.path("words.txt"), words.repeat(300)).unwrap();
        let line = format!(
            "train {} --data words.txt --steps 200 --tokens 16 --lr 0.01 --device cpu --threads 1 \
             {options} -o",
            model.display()
        );
        let begun = Instant::now();
        folder.line(&format!("{line} whole")).ends(0, &["after 200 steps"]);
        let whole = begun.elapsed();
        let (mut calls, mut kills) = (0, 0);
        while !folder.path("killed").exists() {
            // A run that was killed before its first checkpoint begins anew.
            let kept = overdrive::train::Checkpoint::is_at(&folder.path("killed.checkpoint"));
            let resume = if kept { " --resume" } else { "" };
            let mut run = Underway::line(&folder, &format!("{line} killed{resume}"));
            if calls < CALLS {
                std::thread::sleep(whole.mul_f64(LATEST * drawn(100 * number as u64 + calls)));
                kills += u32::from(run.kill());
            } else {
                run.end().ends(0, &["after 200 steps"]);
            }
            calls += 1;
        }
        assert!(kills >= 2, "it was killed {kills} times only");
        let (expected, found) = (files(&folder.path("whole")), files(&folder.path("killed")));
        assert!(expected.keys().any(|name| name.ends_with(".safetensors")));
        assert!(expected.keys().eq(found.keys()), "{:?}, {:?}", expected.keys(), found.keys());
        for (name, bytes) in &expected {
            let command = |bytes: &[u8]| {
                String::from_utf8_lossy(bytes).replace("-o killed", "-o whole").into_bytes()
            };
            let is_json = name.ends_with(".json");
            let same =
                if is_json { command(&found[name]) == *bytes } else { found[name] == *bytes };
            assert!(same, "{options}: `{name}` differs after {kills} kills");
        }
    }
}

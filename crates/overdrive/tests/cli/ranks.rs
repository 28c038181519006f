//! Several ranks that train together: the same weights as one, and ends that name who failed.

use crate::invocation::Folder;
use crate::signals::{Underway, is_gone, send};
use overdrive::formats::{self, Tensors};
use std::fs;
use std::net::TcpListener;

/// The training command of the tests; the folder and more options follow.
const TRAIN: &str = "train digits-mlp --data digits --device cpu --batch 24 --threads 1";

fn states(folder: &Folder, model: &str) -> Tensors {
    formats::safetensors::read(&folder.path(model).join("model.safetensors")).unwrap()
}

/// Adam divides by the root of squares. So the last bits of a gradient move a weight by far less
/// than the learning rate, 1e-3. They move it by more than its own last bits.
const ROUNDING: f64 = 1e-4;

#[track_caller]
fn same(expected: &Tensors, found: &Tensors) {
    assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>());
    for (name, tensor) in expected {
        for (a, b) in tensor.to_f64().iter().zip(found[name].to_f64()) {
            assert!((a - b).abs() <= ROUNDING * (1.0 + a.abs()), "{name}: {a} and {b}");
        }
    }
}

#[test]
fn ranks_give_the_weights_of_one() {
    let folder = Folder::new();
    folder.line(&format!("{TRAIN} --steps 8 -o one")).ends(0, &["model: one"]);
    for ranks in [2, 3] {
        let line = format!("{TRAIN} --steps 8 --nproc {ranks} -o of{ranks}");
        let ended = folder.line(&line);
        ended.ends(0, &[&format!("model: of{ranks}")]);
        // One of them speaks, and records the command as it was typed.
        assert_eq!(ended.stdout.matches("model: ").count(), 1, "{ended:?}");
        let results = fs::read_to_string(folder.path(&format!("of{ranks}/results.json"))).unwrap();
        assert!(results.contains(&format!("--nproc {ranks} -o of{ranks}")), "{results}");
        same(&states(&folder, "one"), &states(&folder, &format!("of{ranks}")));
    }
}

#[test]
fn ranks_that_share_out_the_optimizer_give_them_too() {
    let folder = Folder::new();
    folder.line(&format!("{TRAIN} --steps 8 -o one")).ends(0, &[]);
    let line = format!("{TRAIN} --steps 8 --nproc 2 --shard optimizer -o two");
    folder.line(&line).ends(0, &["model: two"]);
    same(&states(&folder, "one"), &states(&folder, "two"));
    let alone = folder.line(&format!("{TRAIN} --shard optimizer -o three"));
    alone.ends(2, &["--shard: expected several ranks, found one"]);
    let alone = folder.line(&format!("{TRAIN} --compress int8 -o three"));
    alone.ends(2, &["--compress: expected several ranks, found one"]);
    let line = format!("{TRAIN} --steps 8 --nproc 2 --compress topk:0.1 -o fewer");
    folder.line(&line).ends(0, &["model: fewer"]);
}

#[test]
fn ranks_of_a_mesh_that_share_out_everything_do_so() {
    let folder = Folder::new();
    folder.line(&format!("{TRAIN} --steps 8 -o one")).ends(0, &[]);
    let line = format!("{TRAIN} --steps 8 --nproc 2 --mesh data=2 --shard all -o two");
    folder.line(&line).ends(0, &["model: two"]);
    same(&states(&folder, "one"), &states(&folder, "two"));
    for (options, found) in [
        ("--nproc 2 --mesh data=3", "multiply to the number of ranks, 2, found 3; change the"),
        ("--mesh data=2", "multiply to the number of ranks, 1, found 2; add --nproc 2"),
        (
            "--nproc 2 --mesh expert=2",
            "expected the axes `data`, `pipeline`, `tensor` and `context`",
        ),
        ("--nproc 2 --mesh tensor=2 --shard all", "expected several ranks along `data`"),
        ("--nproc 2 --mesh context=2", "expected a label for each position of a sample"),
    ] {
        folder.line(&format!("{TRAIN} {options} -o other")).ends(2, &[found]);
    }
}

#[test]
fn stages_give_the_weights_of_one() {
    let folder = Folder::new();
    let line = format!("{TRAIN} --steps 8 --accumulate 3");
    folder.line(&format!("{line} -o one")).ends(0, &[]);
    for (mesh, ranks) in [("pipeline=2", 2), ("pipeline=2,data=2", 4)] {
        let model = format!("of{ranks}");
        let line = format!("{line} --nproc {ranks} --mesh {mesh} -o {model}");
        folder.line(&line).ends(0, &[&format!("model: {model}")]);
        same(&states(&folder, "one"), &states(&folder, &model));
    }
    let alone = format!("{TRAIN} --steps 1 --nproc 2 --mesh pipeline=2 -o idle");
    folder.line(&alone).ends(0, &["2 stages wait for each other, since a step has 1 of"]);
    let line = format!("{line} --nproc 2 --mesh pipeline=2 -o other");
    folder.line(&format!("{line} --precision fp8")).ends(2, &["without codes of fp8", "bf16"]);
}

#[test]
fn what_ranks_left_other_ranks_continue() {
    let folder = Folder::new();
    folder.line(&format!("{TRAIN} --steps 600 -o one")).ends(0, &[]);
    let line = format!("{TRAIN} --steps 600 --nproc 2 -o model");
    let mut underway = Underway::line(&folder, &line);
    underway.says("validation loss");
    underway.send("TERM").end().ends(143, &["steps are done and kept in", "--nproc 2", "--resume"]);
    assert!(folder.files().contains(&"model.checkpoint".to_owned()));
    let again = folder.line(&format!("{TRAIN} --steps 600 --nproc 2 -o model"));
    again.ends(2, &["go on with --resume", "rank 0 of 2 ended with exit code 2"]);
    folder.line(&format!("{TRAIN} --steps 600 --nproc 3 --resume -o model")).ends(0, &[]);
    // Hundreds of steps later, so that roundings have grown; another batch would be far off.
    let [one, model] = ["one", "model"].map(|name| states(&folder, name));
    for (name, tensor) in &one {
        let pairs = || tensor.to_f64().into_iter().zip(model[name].to_f64());
        let off = pairs().map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
        let size = pairs().map(|(a, _)| a * a).sum::<f64>().sqrt();
        assert!(off <= 0.02 * (1.0 + size), "{name}: off by {off} of {size}");
    }
}

#[test]
fn what_ranks_find_wrong_ends_all() {
    let folder = Folder::new();
    let ended = folder.line(&format!("{TRAIN} --nproc 5 --steps 8 -o model"));
    // All find it, and it is said once.
    let found = "batch: expected a multiple of the 5 ranks, found 24";
    ended.ends(2, &["all 5 ranks: error: ", found]);
    assert_eq!(ended.stderr.matches("expected a multiple").count(), 1, "{}", ended.stderr);
    let ended = folder.line("train --data none.csv --device cpu --nproc 2 -o model");
    ended.ends(2, &["none.csv"]);
    assert_eq!(ended.stderr.matches("none.csv").count(), 1, "{}", ended.stderr);
    assert!(folder.files().is_empty(), "{:?}", folder.files());
}

/// Ranks of a command by their number.
pub(crate) fn ranks_of(process: u32, count: usize) -> Vec<u32> {
    let mut ranks = vec![0; count];
    while ranks.contains(&0) {
        let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
        for child in children.unwrap().split_whitespace() {
            // A child has its own environment once it runs the program.
            let of_child = fs::read(format!("/proc/{child}/environ")).unwrap_or_default();
            let variables = String::from_utf8_lossy(&of_child);
            let rank = variables.split('\0').find_map(|text| text.strip_prefix("RANK="));
            if let Some(rank) = rank.and_then(|rank| rank.parse::<usize>().ok()) {
                ranks[rank] = child.parse().unwrap();
            }
        }
    }
    ranks
}

#[test]
fn a_rank_that_is_killed_ends_all_and_is_named() {
    for gone in [0, 1] {
        let folder = Folder::new();
        let line = format!("{TRAIN} --steps 1000000000 --nproc 3 -o model");
        let mut underway = Underway::line(&folder, &line);
        let ranks = ranks_of(underway.id(), 3);
        underway.says("validation loss");
        send("KILL", ranks[gone]);
        let named = format!("rank {gone} of 3 was ended from outside (signal: 9");
        underway.end().ends(3, &[&named, "the other 2 ended with it"]);
        ranks.into_iter().for_each(|rank| is_gone(&rank.to_string()));
    }
}

#[test]
fn ranks_end_with_a_command_that_is_killed() {
    let folder = Folder::new();
    let line = format!("{TRAIN} --steps 1000000000 --nproc 3 -o model");
    let mut underway = Underway::line(&folder, &line);
    underway.says("validation loss");
    let ranks = ranks_of(underway.id(), 3);
    underway.send("KILL");
    ranks.iter().for_each(|rank| is_gone(&rank.to_string()));
}

/// Each rank writes its parts; a kill of all while they do leaves a checkpoint that others read.
#[test]
fn a_kill_while_a_checkpoint_is_written_leaves_one_that_goes_on() {
    let folder = Folder::new();
    let line = format!("{TRAIN} --steps 1000000000 --nproc 2 --shard all -o model");
    let mut underway = Underway::line(&folder, &line);
    let ranks = ranks_of(underway.id(), 2);
    // The first checkpoint is whole before the second one begins, after the second look.
    for _ in 0..3 {
        underway.says("validation loss");
    }
    ranks.iter().for_each(|rank| send("KILL", *rank));
    underway.end().ends(3, &["was ended from outside"]);
    assert!(folder.files().contains(&"model.checkpoint".to_owned()), "{:?}", folder.files());
    for options in ["--nproc 3 --shard optimizer", "--nproc 2 --mesh tensor=2"] {
        let line = format!("{TRAIN} --steps 1000000000 {options} --resume -o model");
        let mut other = Underway::line(&folder, &line);
        other.says("validation loss");
        other.send("TERM").end().ends(143, &["steps are done and kept in `model.checkpoint`"]);
    }
}

/// Files that one rank may not write, as on a full disk.
#[cfg(target_os = "linux")]
#[test]
fn a_checkpoint_that_has_no_room_leaves_the_one_before() {
    for ranks in ["", "--nproc 2 --shard all"] {
        let folder = Folder::new();
        let line = |more: &str| format!("{TRAIN} --steps 1000000000 {ranks} {more} -o model");
        let interrupted = |more: &str| {
            let mut underway = Underway::line(&folder, &line(more));
            underway.says("validation loss");
            underway.send("TERM").end().ends(143, &["steps are done and kept in"]);
        };
        interrupted("");
        let kept = folder.path("model.checkpoint");
        let sets = ["a", "b"].map(|set| kept.join(set));
        let parts = sets.iter().flat_map(fs::read_dir).flatten();
        let largest = parts.map(|part| part.unwrap().metadata().unwrap().len()).max().unwrap();
        // The states fit, their header does not.
        let blocks = (largest - 1) / 512;
        let ended = folder.shell(&format!("ulimit -f {blocks}; overdrive {}", line("--resume")));
        let words = ["File too large", "Earlier steps are kept in `model.checkpoint`", "--resume"];
        ended.ends(2, &words);
        assert!(ended.stderr.contains(".safetensors"), "the file is named: {ended:?}");
        assert_eq!(folder.files(), ["model.checkpoint"]);
        interrupted("--resume");
    }
}

#[test]
fn a_rank_that_hangs_ends_all_and_is_named() {
    let folder = Folder::new();
    let line = format!("{TRAIN} --steps 1000000000 --nproc 2 --rank-timeout 10 -o model");
    let mut underway = Underway::line(&folder, &line);
    let ranks = ranks_of(underway.id(), 2);
    underway.says("validation loss");
    send("STOP", ranks[1]);
    let late = "rank 1 did not come to";
    underway.end().ends(3, &[late, "in 10 s", "rank 1 of 2 did not end by itself and was killed"]);
    ranks.into_iter().for_each(|rank| is_gone(&rank.to_string()));
}

/// A stopped process gives no signs of life: the others need not wait for the patience.
#[test]
fn a_rank_that_is_stopped_ends_all_in_seconds() {
    let folder = Folder::new();
    let line = format!("{TRAIN} --steps 1000000000 --nproc 3 -o model");
    let mut underway = Underway::line(&folder, &line);
    let ranks = ranks_of(underway.id(), 3);
    underway.says("validation loss");
    send("STOP", ranks[2]);
    let silent = "cannot reach rank 2: expected a sign of life each second, found none for 15 s";
    underway.end().ends(3, &[silent, "rank 2 of 3 did not end by itself and was killed"]);
    ranks.into_iter().for_each(|rank| is_gone(&rank.to_string()));
}

/// As a launcher starts them, without `--nproc`.
#[test]
fn ranks_that_a_launcher_starts_join_by_themselves() {
    let folder = Folder::new();
    folder.line(&format!("{TRAIN} --steps 8 -o one")).ends(0, &[]);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let line = format!("{TRAIN} --steps 8 -o model");
    let words: Vec<&str> = line.split(' ').collect();
    let program = env!("CARGO_BIN_EXE_overdrive");
    let start = |rank: &str| {
        let variables = [
            ("RANK", rank),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", rank),
            ("MASTER_ADDR", "localhost"),
            ("MASTER_PORT", &port),
        ];
        Underway::with(&folder, program, &words, &variables)
    };
    let mut ranks = ["0", "1"].map(start);
    ranks[0].end().ends(0, &["model: model"]);
    let other = ranks[1].end();
    other.ends(0, &[]);
    assert_eq!((other.stdout.as_str(), other.stderr.as_str()), ("", ""), "rank 0 speaks for all");
    same(&states(&folder, "one"), &states(&folder, "model"));
    // The launcher and the command line disagree.
    let line = format!("{TRAIN} --nproc 4 -o other");
    let words: Vec<&str> = line.split(' ').collect();
    let variables =
        [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "::1"), ("MASTER_PORT", "9")];
    let ended = Underway::with(&folder, program, &words, &variables).end();
    ended.ends(2, &["--nproc 4: expected as many ranks as the launcher started, found 2"]);
    let ended = Underway::with(&folder, program, &words, &[("RANK", "1")]).end();
    ended.ends(2, &["started by torchrun: expected the variable WORLD_SIZE, found none"]);
}

/// Each process would do the whole work of these, and write the same files.
#[test]
fn a_launcher_starts_no_copies_of_a_command_without_ranks() {
    let folder = Folder::new();
    let program = env!("CARGO_BIN_EXE_overdrive");
    let variables =
        [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "::1"), ("MASTER_PORT", "9")];
    let under = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        Underway::with(&folder, program, &words, &variables).end()
    };
    for line in [
        "bench mlp",
        "run attention",
        "eval mlp --inputs inputs.npz",
        "export mlp --onnx mlp.onnx",
        "profile mlp",
        "optimize mlp -o made",
        "quantize mlp --mode int8-weights -o made",
        "report results",
        "regress",
    ] {
        let name = line.split(' ').next().unwrap();
        let expected = format!("`{name}`: expected one process, found that the launcher started 2");
        under(line).ends(2, &[&expected, "only ranks of `train` and `generate` work together"]);
    }
    // Without an address the ranks could not join, and are several all the same.
    let variables = [("RANK", "0"), ("WORLD_SIZE", "2")];
    let ended = Underway::with(&folder, program, &["bench", "mlp"], &variables).end();
    ended.ends(2, &["found variables that torchrun gives to several"]);
    let ended = under("run distributed");
    ended.ends(2, &["the study `distributed` starts ranks of its own"]);
    assert_eq!(fs::read_dir(folder.path("")).unwrap().count(), 0, "nothing is written");
    under("models").ends(0, &["digits-mlp"]);
}

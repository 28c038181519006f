//! `explain`: passes, steps, memory and notes of a plan, for people and for programs.

use crate::invocation::Folder;
use serde_json::Value;

const LINE: &str = "explain digits-mlp --batch 2 --device cpu --threads 1";

#[test]
fn explain_prints_every_pass_step_and_note_in_80_columns() {
    let folder = Folder::new();
    for mode in ["eager", "jit", "compile"] {
        let outcome = folder.line(&format!("{LINE} --mode {mode}"));
        outcome.ends(0, &["attend", "legalize", "place", "writes to", "output 0", "peak"]);
        let widest = outcome.stdout.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{}", outcome.stdout);
        assert!(outcome.stdout.contains("(not in mode"), "no mode has all passes");
    }
    assert!(folder.files().is_empty());
}

#[test]
fn notes_stand_under_the_pass_that_made_them() {
    let outcome = Folder::new().line(LINE);
    let said = &outcome.ends(0, &["notes of `legalize`"]).stdout;
    let (_, of_legalize) = said.split_once("notes of `legalize`").unwrap();
    let (of_legalize, _) = of_legalize.split_once("\n\n").unwrap();
    assert!(of_legalize.contains("expanded"), "{said}");
    assert!(!said.contains("notes of `place`"), "it makes none: {said}");
}

#[test]
fn the_json_of_explain_adds_up() {
    let folder = Folder::new();
    let outcome = folder.line(&format!("{LINE} --json"));
    let plan: Value = serde_json::from_str(&outcome.ends(0, &[]).stdout).unwrap();
    let list = |key: &str| plan[key].as_array().unwrap().clone();
    let ran: Vec<Value> = list("passes").into_iter().filter(|pass| pass["ran"] == true).collect();
    let names: Vec<&str> = ran.iter().map(|pass| pass["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"groups") && !names.contains(&"node_by_node"), "{names:?}");
    assert_eq!(names.last(), Some(&"place"), "places are the last word");
    for pair in ran.windows(2) {
        assert_eq!(pair[0]["nodes"]["after"], pair[1]["nodes"]["before"], "{}", pair[1]["name"]);
    }
    let steps = list("steps");
    assert_eq!(ran.last().unwrap()["steps"]["after"], steps.len());
    assert!(steps.iter().any(|step| step["flops"].as_u64() > Some(0)), "{plan}");
    let noted: usize = ran.iter().map(|pass| pass["notes"].as_array().unwrap().len()).sum();
    assert_eq!(noted, list("notes").len());
    assert!(plan["memory"]["arena_bytes"][0].as_u64() >= plan["memory"]["live_bytes"].as_u64());
}

#[test]
fn explain_refuses_what_no_device_has() {
    let folder = Folder::new();
    folder.line("explain mlp --device cuda:999").ends(2, &["cuda:999", "`--device cpu`"]);
    folder.line(&format!("{LINE} --mode graph")).ends(2, &["--mode graph", "--mode compile"]);
    folder.line("explain transfomer").ends(2, &["did you mean `transformer`?"]);
}

/// Bytes of the states of the plan that a line explains.
fn state_bytes(folder: &Folder, line: &str) -> u64 {
    let outcome = folder.line(&format!("{line} --json"));
    let plan: Value = serde_json::from_str(&outcome.ends(0, &[]).stdout).unwrap();
    plan["memory"]["state_bytes"][0].as_u64().unwrap()
}

#[test]
fn a_training_step_is_explained_by_its_optimizer() {
    let folder = Folder::new();
    let line = "explain digits-mlp --training --device cpu --threads 1";
    let of = |rule: &str| state_bytes(&folder, &format!("{line} --optimizer {rule}"));
    assert_eq!(state_bytes(&folder, line), of("adamw"), "it is the default, as of `train`");
    // Parameters and two moments, parameters and one, and one for hidden matrices alone.
    assert!(of("sgd") * 5 < of("adamw") * 4, "{} and {}", of("sgd"), of("adamw"));
    assert!(of("sgd") < of("muon") && of("muon") < of("adamw"));
    folder.line(&format!("{line} --optimizer lion")).ends(2, &["lion", "adamw, muon, sgd"]);
    folder.line("explain digits-mlp --optimizer sgd").ends(2, &["--training"]);
}

#[test]
fn a_training_step_is_explained_with_its_adapters() {
    let folder = Folder::new();
    let line = "explain text-transformer --training --batch 2 --device cpu --threads 1";
    let (all, adapters) =
        (state_bytes(&folder, line), state_bytes(&folder, &format!("{line} --lora 4")));
    // Frozen weights have no moments.
    assert!(2 * adapters < all, "{adapters} and {all}");
    folder.line(&format!("{line} --lora 0")).ends(2, &["--lora", "RANK,ALPHA"]);
    folder.line("explain text-transformer --lora 4").ends(2, &["--training"]);
}

#[test]
fn a_training_step_is_explained_within_a_memory_limit() {
    let folder = Folder::new();
    let line = "explain text-transformer --training --batch 8 --device cpu --threads 1";
    let plan = |limit: &str| -> Value {
        let outcome = folder.line(&format!("{line} --json {limit}"));
        serde_json::from_str(&outcome.ends(0, &[]).stdout).unwrap()
    };
    let recomputed = |plan: &Value| {
        let notes = plan["notes"].as_array().unwrap();
        let for_backward = |note: &&Value| note["reason"].as_str().unwrap().contains("backward");
        notes.iter().filter(|note| note["kind"] == "recomputed").filter(for_backward).count()
    };
    let peak = |plan: &Value| plan["memory"]["peak_bytes"][0].as_u64().unwrap();
    let free = plan("");
    assert_eq!(recomputed(&free), 0);
    let refused = folder.line(&format!("{line} --memory-limit 1KiB"));
    let said = &refused.ends(2, &["the limit is 1024", "smaller batch"]).stderr;
    assert!(!said.contains("other memory"), "a processor has none: {said}");
    let words: Vec<&str> = said.split_whitespace().collect();
    let at = words.windows(2).position(|pair| pair == ["at", "least"]).unwrap();
    let least: u64 = words[at + 2].parse().unwrap();
    assert!(least < peak(&free), "{said}");
    let fitting = plan(&format!("--memory-limit {least}"));
    assert!(recomputed(&fitting) > 0 && peak(&fitting) == least);
    folder.line(&format!("{line} --memory-limit 2GB")).ends(2, &["--memory-limit", "GiB"]);
}

#[test]
fn a_training_step_is_explained_as_one_of_many_ranks_takes_it() {
    let folder = Folder::new();
    let line = "explain digits-mlp --training --batch 64 --device cpu --threads 1";
    let states = |rest: &str| {
        let said = folder.line(&format!("{line} {rest}")).ends(0, &[]).stdout.clone();
        let memory = said.lines().find(|line| line.starts_with("main memory: ")).unwrap();
        (memory.rsplit_once("states of ").unwrap().1.to_owned(), said)
    };
    let (alone, _) = states("");
    let (data, said) = states("--mesh data=4");
    assert!(said.contains("one of 4 ranks") && said.contains("collectives exchange"), "{said}");
    assert_eq!(data, alone, "each rank holds the whole model");
    let (shared, _) = states("--mesh data=4 --shard optimizer");
    assert_ne!(shared, alone, "each rank holds a part of the moments");
    let (all, _) = states("--mesh data=4 --shard all");
    assert!(all != alone && all != shared, "each rank holds a part of the matrices too");
    let exchange = |said: &str| {
        let line = said.lines().find(|line| line.contains("collectives exchange")).unwrap();
        line.rsplit_once("exchange ").unwrap().1.to_owned()
    };
    let (_, codes) = states("--mesh data=4 --compress int8");
    assert_ne!(exchange(&codes), exchange(&said), "codes are fewer bytes");
    for (rest, words) in [
        ("--mesh data=1 --compress int8", ["expected several ranks", "found one"]),
        ("--mesh data=2 --compress int4", ["int8, fp8, topk:SHARE", "found `int4`"]),
        ("--compress int8", ["--mesh", "required"]),
        (
            "--mesh expert=2",
            ["expected the axes `data`, `pipeline`, `tensor` and `context`", "data=4"],
        ),
        ("--mesh context=2", ["mesh, `context`: expected a label for each position", "`data`"]),
        ("--mesh data=3", ["64", "3"]),
        ("--mesh data", ["an axis and its size", "data=4,tensor=2"]),
        ("--shard optimizer", ["--mesh", "required"]),
        ("--context ring", ["--mesh", "required"]),
        ("--mesh data=2 --context ring", ["several ranks along `context`", "found data=2"]),
        ("--mesh context=2 --context star", ["expected ring, ulysses", "found `star`"]),
    ] {
        folder.line(&format!("{line} {rest}")).ends(2, &words);
    }
    folder.line("explain digits-mlp --mesh data=2").ends(2, &["--training"]);
}

#[test]
fn a_training_step_on_codes_of_fp8_is_explained() {
    let folder = Folder::new();
    let line = "explain text-transformer --gpu h200 --dtype fp8-e4m3";
    let step = folder.line(&format!("{line} --training --batch 8"));
    step.ends(0, &["cast_transpose", "float8"]);
    folder.line(line).ends(2, &["--dtype fp8-e4m3: expected f32, bf16 or f16", "--training"]);
}

/// A training step of eight ranks on GPUs that are not there.
const PREDICTED: &str = "plan digits-mlp --training --batch 512 --gpu h200 --mesh data=8 --fabric";

fn predicted(folder: &Folder, rest: &str) -> Value {
    let said = folder.line(&format!("{PREDICTED} {rest} --json")).ends(0, &[]).stdout.clone();
    serde_json::from_str::<Value>(&said).unwrap()["predicted"].clone()
}

fn is_near(value: &Value, expected: f64) -> bool {
    (value.as_f64().unwrap() / expected - 1.0).abs() < 1e-9
}

#[test]
fn the_step_of_many_ranks_is_predicted_without_a_gpu() {
    let folder = Folder::new();
    let said = folder.line(&format!("{PREDICTED} nvlink-h200"));
    said.ends(0, &["predicted step of 8 ranks", "efficiency", "exposed", "all_reduce", "nominal"]);
    let json = predicted(&folder, "nvlink-h200 --scale 1,8,64,4096");
    assert_eq!((&json["samples"], &json["step"]["batch"]), (&64.into(), &512.into()));
    let rows = json["scale"].as_array().unwrap();
    assert_eq!(rows[1], json["step"], "the mesh itself is planned as any other size");
    let of = |name: &str| rows.iter().map(|row| row[name].as_f64().unwrap()).collect::<Vec<_>>();
    assert_eq!(of("ranks"), [1.0, 8.0, 64.0, 4096.0]);
    assert_eq!(of("batch"), [64.0, 512.0, 4096.0, 262_144.0], "64 samples a rank");
    assert!(is_near(&rows[0]["efficiency"], 1.0) && rows[0]["sent_bytes"] == 0.0, "{}", rows[0]);
    let is_sorted = |all: &[f64]| all.windows(2).all(|pair| pair[0] < pair[1]);
    assert!(is_sorted(&of("seconds")) && is_sorted(&of("exposed_seconds")), "{json}");
    assert!(of("efficiency").windows(2).all(|pair| pair[0] > pair[1]), "{json}");
    let table = folder.line(&format!("{PREDICTED} nvlink-h200 --scale 1,16"));
    table.ends(0, &["predicted for other sizes of `data`, 64 samples a rank", "weak scaling"]);
    assert!(folder.files().is_empty());
}

#[test]
fn stages_are_planned_and_predicted_together() {
    let folder = Folder::new();
    let line = "plan text-transformer --training --batch 4 --gpu h200 --fabric nvlink-h200";
    let said = folder.line(&format!("{line} --mesh pipeline=2 --accumulate 8"));
    said.ends(0, &["ranks along `pipeline`", "peak memory", "predicted step of 2", "stages idle"]);
    let json = |rest: &str| {
        let said = folder.line(&format!("{line} {rest} --json")).ends(0, &[]).stdout.clone();
        serde_json::from_str::<Value>(&said).unwrap()
    };
    let few = json("--mesh pipeline=2 --accumulate 2");
    let many = json("--mesh pipeline=2 --accumulate 16");
    let idle = |json: &Value| {
        let step = &json["predicted"]["step"];
        step["idle_seconds"].as_f64().unwrap() / step["seconds"].as_f64().unwrap()
    };
    assert!(idle(&many) < idle(&few), "more batches leave stages idle for less: {many}");
    let stages = many["stages"].as_array().unwrap();
    let whole = json("--mesh data=1");
    let states = |json: &Value| json["state_bytes"].as_u64().unwrap();
    let all: u64 = stages.iter().map(states).sum();
    let one = whole["memory"]["state_bytes"][0].as_u64().unwrap();
    assert!((all as f64 / one as f64 - 1.0).abs() < 0.01, "{all} of {one}");
    let rows = json("--mesh pipeline=2 --accumulate 8 --scale 1,2");
    let efficiency = |row: usize| rows["predicted"]["scale"][row]["efficiency"].as_f64().unwrap();
    assert!((efficiency(0) - 1.0).abs() < 0.01, "one stage is one rank: {}", efficiency(0));
    assert!(efficiency(1) < 1.0, "{rows}");
    let refused = folder.line(&format!("{line} --mesh data=2 --accumulate 8"));
    refused.ends(2, &["--accumulate 8: expected stages", "found the mesh data=2", "`pipeline`"]);
    let refused = folder.line(&format!("{line} --mesh pipeline=4096"));
    refused.ends(2, &["expected layers for 4096 stages", "use a mesh whose `pipeline` is at most"]);
}

#[test]
fn a_prediction_stands_on_a_measured_step_and_measured_links() {
    let folder = Folder::new();
    let nominal = predicted(&folder, "nvlink-h200");
    let measured = predicted(&folder, "nvlink-h200 --step-ms 20");
    assert_eq!(
        (&nominal["one_rank_measured"], &measured["one_rank_measured"]),
        (&false.into(), &true.into())
    );
    assert!(is_near(&measured["one_rank_seconds"], 0.02), "{measured}");
    // Other ranks change a few small steps.
    let work = measured["step"]["work_seconds"].as_f64().unwrap();
    assert!((work / 0.02 - 1.0).abs() < 0.02, "about the same work on every rank: {work}");
    let exchange = "exchange_seconds";
    assert_eq!(measured["step"][exchange], nominal["step"][exchange], "links are as they were");
    // Eight of its ranks are on a host, and a link there is a thousandth as fast.
    let text = nominal["fabric"].to_string().replace("360000000000", "360000000");
    std::fs::write(folder.path("slow.json"), &text).unwrap();
    let slow = predicted(&folder, "slow.json");
    let seconds = |json: &Value| json["step"][exchange].as_f64().unwrap();
    assert!(seconds(&slow) > 1.5 * seconds(&nominal), "{slow}");
    std::fs::write(folder.path("alone.json"), text.replace("\"between\"", "\"besides\"")).unwrap();
    for (rest, words) in [
        ("alone.json", ["`alone.json`", "unknown field `besides`", "docs/simulator.md"]),
        ("absent.json", ["absent.json", "", ""]),
        ("nvlink-h20", ["unknown fabric", "infiniband-400", "did you mean `nvlink-h200`?"]),
        ("nvlink-h200 --step-ms 0", ["--step-ms", "above 0", ""]),
        ("nvlink-h200 --scale 0", ["--scale", "0", ""]),
        ("nvlink-h200 --device cpu", ["--gpu", "--device", "cannot be used with"]),
    ] {
        folder.line(&format!("{PREDICTED} {rest}")).ends(2, &words);
    }
    folder.line(&format!("{LINE} --fabric nvlink-h200")).ends(2, &["--mesh"]);
}

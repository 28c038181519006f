//! Checkpoints of some ranks, read by others: bit for bit the same states, and what is wrong is
//! named.

use super::*;
use crate::data::{Dataset, Parts, digits};
use crate::learner::learner;
use crate::ranks::Ranks;
use crate::{EarlyStop, initial_parameters};
use crate::{Ending, Fit, Fitted, Observer, Shards, Sharing, StepReport, Trainer, fit, with_loss};
use overdrive_cpu::CpuBackend;
use overdrive_ir::{Backend, Communicator, Graph, Init, Mesh, Tuning};
use overdrive_ranks::run;
use std::fs;
use std::io::Read;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// Longer than any test waits.
const PATIENCE: Duration = Duration::from_secs(300);

struct Task {
    model: Graph,
    parts: Parts,
    recipe: Recipe,
}

/// Looks after steps 3 and 6 of 8, with the best parameters kept.
fn task() -> Task {
    let model = (overdrive_models::find("digits-mlp").unwrap().build)().unwrap();
    let parts = Dataset::Samples(digits()).parts(&model, 0).unwrap();
    let early_stop = Some(EarlyStop { patience: 9 });
    let recipe = Recipe { steps: 8, batch: 24, evaluate_every: 3, early_stop, ..Recipe::default() };
    Task { model, parts, recipe }
}

/// Ends after some steps, each of which takes a while.
#[derive(Copy, Clone, Default)]
struct Ends {
    after: Option<u64>,
    pause: Duration,
}

impl Observer for Ends {
    fn stepped(&mut self, report: &StepReport) -> ControlFlow<()> {
        std::thread::sleep(self.pause);
        match self.after {
            Some(after) if report.step + 1 >= after => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}

#[test]
fn a_run_that_goes_on_needs_room_for_one_copy_more() {
    let folder = Path::new("model.checkpoint");
    let of = |file: &str| {
        let empty = tempfile::NamedTempFile::new().unwrap();
        let sum = Checksum::of_file(empty.path()).unwrap();
        Checkpoint { files: [(file.into(), sum)].into(), ..Checkpoint::default() }
    };
    let copies = |earlier: &Checkpoint| Checkpoint::copies_to_come(folder, Some(earlier));
    assert_eq!(Checkpoint::copies_to_come(folder, None), 2);
    assert_eq!(copies(&of("model.checkpoint/0-of-1.safetensors")), 1);
    assert_eq!(copies(&of("elsewhere/0-of-1.safetensors")), 2);
    // The file of an earlier version stays beside the folder until the end.
    assert_eq!(copies(&Checkpoint::default()), 2);
}

/// The place of a run's checkpoint, and the one that it goes on from.
#[derive(Copy, Clone, Default)]
struct Kept<'a> {
    checkpoint: Option<&'a Path>,
    resume: Option<&'a Checkpoint>,
}

fn of_rank(
    task: &Task,
    (ranks, shards): (Option<Arc<dyn Communicator>>, Shards),
    kept: Kept<'_>,
    mut ends: Ends,
) -> Result<Fitted, TrainError> {
    let backend = CpuBackend::new(Some(1)).unwrap();
    let backend = match &ranks {
        Some(communicator) => backend.on(Arc::clone(communicator)),
        None => backend,
    };
    let Kept { checkpoint, resume } = kept;
    let anew = Fit::anew((&backend, &task.model), &task.recipe, &task.parts);
    let sharing = Sharing::from(shards);
    fit(&Fit { checkpoint, resume, sharing, ranks: ranks.as_deref(), ..anew }, &mut ends)
}

/// The same on all ranks of a mesh.
fn of_ranks(
    task: &Task,
    (mesh, shards): (&str, Shards),
    kept: Kept<'_>,
    ends: Ends,
) -> Vec<Fitted> {
    let mesh: Mesh = mesh.parse().unwrap();
    let all = run(&mesh, PATIENCE, |rank| of_rank(task, (Some(rank), shards), kept, ends));
    all.into_iter().map(|result| result.unwrap_or_else(|error| panic!("{error}"))).collect()
}

fn ends_after(steps: u64) -> Ends {
    Ends { after: Some(steps), ..Ends::default() }
}

/// A checkpoint after step 5: ranks end one step after they are asked to.
fn interrupted(task: &Task, of: (&str, Shards), folder: &Path) -> Checkpoint {
    let kept = Kept { checkpoint: Some(folder), ..Kept::default() };
    for fitted in of_ranks(task, of, kept, ends_after(4)) {
        assert_eq!((fitted.ending, fitted.progress.done), (Ending::Interrupted, 5));
    }
    Checkpoint::read(folder).unwrap()
}

/// How a rank may share out states.
const SHARDS: [Shards; 3] = [Shards::Nothing, Shards::Optimizer, Shards::Parameters];

#[test]
fn ranks_write_each_state_once_and_none_writes_all() {
    let task = task();
    let folder = tempfile::tempdir().unwrap();
    for (number, shards) in SHARDS.into_iter().enumerate() {
        let path = folder.path().join(number.to_string());
        let kept = interrupted(&task, ("tensor=2,data=2", shards), &path);
        let saved = kept.state.values().chain(kept.best.values());
        let bytes: u64 = saved.map(|saved| saved.ty().bytes() as u64).sum();
        let sizes: Vec<u64> =
            kept.files.keys().map(|file| fs::metadata(file).unwrap().len()).collect();
        let most = sizes.iter().max().unwrap();
        let all: u64 = sizes.iter().sum();
        // Beside the states, each file has a header.
        let headers = (8 << 10) * sizes.len() as u64;
        assert!(all >= bytes && all <= bytes + headers, "{sizes:?} for {bytes} bytes");
        let is_shared_out = sizes.len() == 4 && *most < bytes * 4 / 5;
        assert!(is_shared_out || shards == Shards::Nothing, "{sizes:?} for {bytes} bytes");
        assert_eq!(kept.best.len(), task.model.states().len());
    }
}

/// The parts of the states that each rank of a mesh holds after it has read a checkpoint.
fn restored(task: &Task, (mesh, shards): (&str, Shards), kept: &Checkpoint) {
    let mesh: Mesh = mesh.parse().unwrap();
    let forward = learner(&task.model, &task.recipe, task.recipe.batch).unwrap();
    let initial = initial_parameters(&forward, 9);
    let initial = |name: &str| initial.get(name).cloned().map(Init::Value);
    let judged = with_loss(&forward, task.parts.train.target()).unwrap();
    let done = run(&mesh, PATIENCE, |rank| {
        let backend = CpuBackend::new(Some(1)).unwrap().on(Arc::clone(&rank));
        let sharing = Sharing::from(shards);
        let place = (&backend as &dyn Backend, Ranks(Some(rank.as_ref()), sharing));
        let tuning = Tuning::default();
        let mut trainer =
            Trainer::of_rank(place, &judged, &task.recipe, &initial, &tuning).unwrap();
        trainer.restore(kept).unwrap();
        let best = trainer.best_of(kept).unwrap();
        for (found, saved) in [(trainer.snapshot().unwrap(), &kept.state), (best, &kept.best)] {
            assert!(found.keys().eq(saved.keys()));
            for (name, part) in found {
                let whole = saved[&name].read().unwrap();
                let expected = trainer.held().part(&name, &whole, rank.rank());
                assert!(part == expected, "`{name}` on rank {} of {mesh}", rank.rank());
            }
        }
        Ok::<_, TrainError>(())
    });
    done.into_iter().for_each(|rank| rank.unwrap());
}

#[test]
fn any_ranks_read_the_same_bits() {
    let task = task();
    let folder = tempfile::tempdir().unwrap();
    let written = [
        ("data=2", Shards::Parameters),
        ("tensor=2,data=2", Shards::Optimizer),
        ("data=3", Shards::Nothing),
    ];
    for (number, of) in written.into_iter().enumerate() {
        let kept = interrupted(&task, of, &folder.path().join(number.to_string()));
        restored(&task, ("data=1", Shards::Nothing), &kept);
        for mesh in ["data=4", "data=2,tensor=2"] {
            SHARDS.iter().for_each(|shards| restored(&task, (mesh, *shards), &kept));
        }
    }
}

#[test]
fn the_same_ranks_go_on_bit_for_bit_and_a_slow_one_changes_nothing() {
    let task = task();
    let folder = tempfile::tempdir().unwrap();
    for (number, shards) in SHARDS.into_iter().enumerate() {
        let of = ("data=2", shards);
        let expected = of_ranks(&task, of, Kept::default(), Ends::default());
        let path = folder.path().join(number.to_string());
        let kept = interrupted(&task, of, &path);
        let kept = Kept { checkpoint: Some(&path), resume: Some(&kept) };
        let slow = |rank: usize| Duration::from_millis(20 * rank as u64);
        let found = run(&of.0.parse().unwrap(), PATIENCE, |rank| {
            let ends = Ends { pause: slow(rank.rank()), ..Ends::default() };
            of_rank(&task, (Some(rank), shards), kept, ends)
        });
        let found: Vec<Fitted> = found.into_iter().map(Result::unwrap).collect();
        assert!(found == expected, "{shards:?}");
    }
}

#[test]
fn a_kill_while_parts_are_written_leaves_the_checkpoint_before() {
    let task = task();
    let folder = tempfile::tempdir().unwrap();
    let of = ("data=2", Shards::Parameters);
    let expected = of_ranks(&task, of, Kept::default(), Ends::default());
    let path = folder.path().join("checkpoint");
    let kept = interrupted(&task, of, &path);
    // The parts of the next checkpoint: one is there, one is cut short, none is listed.
    let listed = kept.files.keys().next().unwrap().parent().unwrap();
    let spare = path.join(if listed.ends_with("a") { "b" } else { "a" });
    fs::create_dir_all(&spare).unwrap();
    for (file, cut) in kept.files.keys().zip([1, 2]) {
        let bytes = bytes_of(file);
        fs::write(spare.join(file.file_name().unwrap()), &bytes[..bytes.len() / cut]).unwrap();
    }
    let again = Checkpoint::read(&path).unwrap();
    assert_eq!(again.files, kept.files);
    // On another mesh the sums have another order.
    let kept = Kept { resume: Some(&again), ..Kept::default() };
    let other = of_ranks(&task, ("data=3", Shards::Optimizer), kept, Ends::default());
    for (name, tensor) in &expected[0].parameters {
        for (a, b) in tensor.to_f64().iter().zip(other[0].parameters[name].to_f64()) {
            assert!((a - b).abs() <= 2e-5 * (1.0 + a.abs()), "{name}: {a} and {b}");
        }
    }
    let kept = Kept { checkpoint: Some(&path), ..kept };
    assert!(of_ranks(&task, of, kept, Ends::default()) == expected);
    assert_eq!(Checkpoint::read(&path).unwrap().progress.done, task.recipe.steps);
}

fn bytes_of(path: &Path) -> Vec<u8> {
    let mut bytes = vec![];
    overdrive_files::open(path).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

/// The error of reading a checkpoint and looking at its files.
fn refused(path: &Path) -> String {
    let checked = Checkpoint::read(path).and_then(|kept| {
        // Each rank looks at some files, and all at all.
        (0..2).try_for_each(|rank| kept.check_files(rank, 2))
    });
    checked.unwrap_err().to_string()
}

#[test]
fn a_part_that_is_missing_damaged_or_of_another_step_is_named() {
    let task = task();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("checkpoint");
    let of = ("data=2", Shards::Parameters);
    let kept = interrupted(&task, of, &path);
    let part = kept.files.keys().nth(1).unwrap();
    let name = part.display().to_string();
    let whole = bytes_of(part);

    fs::remove_file(part).unwrap();
    let said = refused(&path);
    assert!(said.starts_with(&name) && said.contains("found no such file; bring back"), "{said}");

    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(part, &damaged).unwrap();
    let said = refused(&path);
    assert!(said.starts_with(&name) && said.contains("bytes of checksum"), "{said}");

    fs::write(part, &whole[..whole.len() - 9]).unwrap();
    let said = refused(&path);
    assert!(said.starts_with(&name) && said.contains("as the header says"), "{said}");

    // The same rank's part of the last step.
    let other = folder.path().join("other");
    let all = Kept { checkpoint: Some(&other), ..Kept::default() };
    of_ranks(&task, of, all, Ends::default());
    let last = Checkpoint::read(&other).unwrap();
    fs::copy(last.files.keys().nth(1).unwrap(), part).unwrap();
    let said = refused(&path);
    assert!(said.starts_with(&name) && said.contains("after step 5, as "), "{said}");
    assert!(said.contains("found a part of a checkpoint after step 8"), "{said}");

    // A list that lacks a file: the states are not whole.
    fs::write(part, &whole).unwrap();
    let list = path.join(overdrive_files::MANIFEST);
    let mut json: serde_json::Value = serde_json::from_slice(&bytes_of(&list)).unwrap();
    json["files"].as_object_mut().unwrap().retain(|name, _| !name.contains("1-of-2"));
    fs::write(&list, json.to_string()).unwrap();
    let said = refused(&path);
    assert!(said.contains("expected parts of") && said.contains("elements in all"), "{said}");

    Checkpoint::remove(&path).unwrap();
    assert!(!path.exists() && !Checkpoint::is_at(&path));
}

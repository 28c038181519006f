//! Places: what is replaced, what never is, and what is left after every way in which a writer can
//! end.

#![allow(clippy::unwrap_used)]

use overdrive_files::{
    Contents, Existing, FileError, MANIFEST, Place, PlaceRequest, UNBOUNDED, snapshot,
};
use std::fs;
use std::path::{Path, PathBuf};

const MODEL: Contents = Contents {
    name: "a model",
    writes: |name| ["config.json", "weights"].contains(&name),
    is_ours: |folder| fs::read(folder.join("config.json")).is_ok_and(|text| text == b"ours"),
};

const RESULTS: Contents = Contents {
    name: "results",
    writes: |name| name == "results.json" || name.starts_with("plots/"),
    is_ours: |folder| folder.join("results.json").is_file(),
};

fn request(path: &Path, existing: Existing) -> PlaceRequest<'_> {
    PlaceRequest { path, option: "--out", existing, inputs: &[] }
}

/// Writes a model of these weights.
fn fill(path: &Path, existing: Existing, weights: &str) -> Result<(), FileError> {
    Place::folder(request(path, existing), MODEL)?.fill(|folder| {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("config.json"), "ours").unwrap();
        fs::write(folder.join("weights"), weights).unwrap();
        Ok(())
    })
}

fn put(path: &Path, existing: Existing, names: &[&str]) -> Result<(), FileError> {
    let place = Place::files(request(path, existing), RESULTS)?;
    names.iter().try_for_each(|name| place.put(name, name.as_bytes()))?;
    place.finish()
}

/// Names of what is in a folder.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn weights(folder: &Path) -> String {
    fs::read_to_string(folder.join("weights")).unwrap()
}

#[track_caller]
fn refused<T>(found: Result<T, FileError>, words: &[&str]) {
    let said = found.err().unwrap().to_string();
    words.iter().for_each(|word| assert!(said.contains(word), "`{word}` was not said: {said}"));
}

#[test]
fn a_folder_appears_whole_and_is_replaced_only_where_asked() {
    let place = tempfile::tempdir().unwrap();
    let model = place.path().join("deep/model");
    fill(&model, Existing::Keep, "one").unwrap();
    assert_eq!(names(&model), ["config.json", MANIFEST, "weights"]);
    refused(fill(&model, Existing::Keep, "two"), &["holds a model", "--force"]);
    assert_eq!(weights(&model), "one");
    fill(&model, Existing::Replace, "two").unwrap();
    assert_eq!(weights(&model), "two");
    assert_eq!(
        names(model.parent().unwrap()),
        ["model"],
        "nothing unfinished, old or locked is left"
    );
}

#[test]
fn what_is_not_ours_is_listed_and_stays() {
    let place = tempfile::tempdir().unwrap();
    let model = place.path().join("model");
    fill(&model, Existing::Keep, "one").unwrap();
    for stranger in ["notes.txt", ".git/HEAD", "papers/a/b.pdf"] {
        let path = model.join(stranger);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "years of work").unwrap();
        let first = stranger.split('/').next().unwrap();
        refused(fill(&model, Existing::Replace, "two"), &["did not write", first]);
        assert!(path.is_file());
        let top = model.join(first);
        if top.is_dir() { fs::remove_dir_all(top).unwrap() } else { fs::remove_file(top).unwrap() }
    }
    // A folder that holds files of these names is no model for that.
    let other = place.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("config.json"), "theirs").unwrap();
    fs::write(other.join("weights"), "theirs").unwrap();
    refused(fill(&other, Existing::Replace, "two"), &["did not write", "config.json", "weights"]);
    // One of the version before manifests is.
    fs::write(other.join("config.json"), "ours").unwrap();
    refused(fill(&other, Existing::Keep, "two"), &["--force"]);
    fill(&other, Existing::Replace, "two").unwrap();
    assert_eq!(weights(&other), "two");
}

#[test]
fn files_appear_beside_others_and_replace_only_ours() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("report");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("thesis.tex"), "years of work").unwrap();
    put(&folder, Existing::Keep, &["results.json", "plots/a", "plots/b"]).unwrap();
    refused(put(&folder, Existing::Keep, &["results.json"]), &["holds results", "--force"]);
    fs::write(folder.join("plots/mine"), "").unwrap();
    refused(put(&folder, Existing::Replace, &["results.json"]), &["did not write", "plots/mine"]);
    fs::remove_file(folder.join("plots/mine")).unwrap();
    put(&folder, Existing::Replace, &["results.json", "plots/a"]).unwrap();
    assert_eq!(names(&folder), [MANIFEST, "plots", "results.json", "thesis.tex"]);
    assert_eq!(names(&folder.join("plots")), ["a"], "what was not written again is gone");
    assert_eq!(names(place.path()), ["report"]);
    fill(&folder, Existing::Replace, "one").expect_err("it holds results");
}

#[test]
fn a_killed_writer_of_files_leaves_what_is_known_as_ours() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("report");
    let killed = Place::files(request(&folder, Existing::Keep), RESULTS).unwrap();
    killed.put("results.json", b"half").unwrap();
    fs::write(folder.join(".overdrive.part"), "draft").unwrap();
    std::mem::forget(killed);
    // The lock of a process that lives is held: this one's.
    refused(put(&folder, Existing::Replace, &["results.json"]), &["being written by process"]);
    fs::remove_file(place.path().join(".report.overdrive-lock")).unwrap();
    put(&folder, Existing::Replace, &["results.json"]).unwrap();
    assert_eq!(names(&folder), [MANIFEST, "results.json"]);
}

#[test]
fn a_writer_that_fails_changes_nothing() {
    let place = tempfile::tempdir().unwrap();
    let model = place.path().join("new/model");
    let claimed = Place::folder(request(&model, Existing::Keep), MODEL).unwrap();
    let failed: Result<(), FileError> = claimed.fill(|folder| {
        fs::create_dir(folder).unwrap();
        Err(FileError::TooLarge { path: folder.to_owned(), most: 0 })
    });
    failed.unwrap_err();
    drop(Place::files(request(&place.path().join("a/b"), Existing::Keep), RESULTS).unwrap());
    assert_eq!(names(place.path()), Vec::<String>::new());
}

#[test]
fn what_killed_writers_left_is_recovered_or_removed() {
    let place = tempfile::tempdir().unwrap();
    let model = place.path().join("model");
    fill(&model, Existing::Keep, "one").unwrap();
    // Killed while it wrote, and between the two renames of a system that cannot swap.
    let leave = || {
        fs::create_dir_all(place.path().join(".model.overdrive-part/model")).unwrap();
        fs::write(place.path().join(".model.overdrive-part/model/.tmpA1"), "half").unwrap();
        fs::write(place.path().join(".model.overdrive-lock"), "999999999").unwrap();
        fs::rename(&model, place.path().join(".model.overdrive-old")).unwrap();
    };
    leave();
    let read = snapshot(&model, &[("weights", UNBOUNDED)]).unwrap();
    assert_eq!(read, [b"one"]);
    leave();
    refused(fill(&model, Existing::Keep, "two"), &["--force"]);
    assert_eq!(names(place.path()), ["model"]);
    leave();
    fill(&model, Existing::Replace, "two").unwrap();
    assert_eq!(
        (names(place.path()), weights(&model)),
        (vec!["model".to_owned()], "two".to_owned())
    );
}

#[test]
fn what_a_user_keeps_beside_a_place_stays() {
    let place = tempfile::tempdir().unwrap();
    let kept = [".model.lock", ".model.old", ".model.part"];
    kept.iter().for_each(|name| fs::write(place.path().join(name), "years of work").unwrap());
    fill(&place.path().join("model"), Existing::Keep, "one").unwrap();
    fill(&place.path().join("model"), Existing::Replace, "two").unwrap();
    assert_eq!(names(place.path()), [&kept[..], &["model"]].concat());
}

#[test]
fn a_place_that_was_taken_meanwhile_does_not_cost_the_work() {
    let place = tempfile::tempdir().unwrap();
    let model = place.path().join("model");
    let claimed = Place::folder(request(&model, Existing::Keep), MODEL).unwrap();
    let filled: Result<(), FileError> = claimed.fill(|folder| {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("weights"), "one").unwrap();
        fs::create_dir(&model).unwrap();
        fs::write(model.join("thesis.tex"), "years of work").unwrap();
        Ok(())
    });
    refused(filled, &["thesis.tex", "The work is kept", "model-2"]);
    assert_eq!(weights(&place.path().join("model-2")), "one");
    assert_eq!(names(&model), ["thesis.tex"]);
}

#[test]
fn damage_is_told_from_what_was_written() {
    let place = tempfile::tempdir().unwrap();
    let model = place.path().join("model");
    fill(&model, Existing::Keep, "weights").unwrap();
    for bit in 0..8 * 7 {
        let mut bytes = b"weights".to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(model.join("weights"), bytes).unwrap();
        refused(
            snapshot(&model, &[("weights", UNBOUNDED)]),
            &["weights: expected 7 bytes", MANIFEST],
        );
    }
    fs::remove_file(model.join(MANIFEST)).unwrap();
    snapshot(&model, &[("weights", UNBOUNDED)]).unwrap();
}

#[test]
fn a_file_takes_its_place_when_it_is_whole() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("y.npz");
    let write = |existing, inputs: &[&Path], text: &str| {
        let request = PlaceRequest { inputs, ..request(&path, existing) };
        Place::file(request)?.fill(|path| {
            assert_eq!(path.extension().unwrap(), "npz", "a format goes by its ending");
            fs::write(path, text).unwrap();
            Ok::<_, FileError>(())
        })
    };
    write(Existing::Keep, &[], "one").unwrap();
    refused(write(Existing::Keep, &[], "two"), &["y.npz` exists", "--force"]);
    refused(write(Existing::Keep, &[&path], "two"), &["is an input"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "one");
    write(Existing::Replace, &[], "two").unwrap();
    assert_eq!(
        (names(place.path()), fs::read_to_string(&path).unwrap()),
        (vec!["y.npz".into()], "two".into())
    );
    let file = |path: PathBuf| Place::file(request(&path, Existing::Replace));
    refused(file(place.path().join("absent/y.npz")), &["cannot write to", "absent"]);
    refused(file(place.path().to_owned()), &["is a folder"]);
    refused(file(path.join("below.npz")), &["cannot write to"]);
}

#[cfg(unix)]
#[test]
fn links_are_followed_and_new_files_have_the_permissions_of_new_files() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let place = tempfile::tempdir().unwrap();
    let [real, link] = ["real", "link"].map(|name| place.path().join(name));
    symlink("real", &link).unwrap();
    fill(&link, Existing::Keep, "one").unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(weights(&real), "one");
    fill(&link, Existing::Replace, "two").unwrap();
    assert_eq!(
        (names(place.path()), weights(&real)),
        (vec!["link".into(), "real".into()], "two".into())
    );
    fs::write(place.path().join("new"), "").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    let file = place.path().join("file");
    let claimed = Place::file(request(&file, Existing::Keep)).unwrap();
    claimed
        .fill(|path| {
            fs::write(path, "").unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
            Ok::<_, FileError>(())
        })
        .unwrap();
    assert_eq!(mode(&file), mode(&place.path().join("new")));
    // A link in a folder of ours is nobody's file of ours.
    fs::remove_file(real.join("weights")).unwrap();
    symlink("../new", real.join("weights")).unwrap();
    refused(fill(&real, Existing::Replace, "three"), &["weights (a link)"]);
}

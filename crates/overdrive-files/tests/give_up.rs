//! An end at once leaves no trace of places that were claimed. A file of its own, since nothing in
//! its process may claim a place afterwards.

#![allow(clippy::unwrap_used)]

use overdrive_files::{Contents, Existing, Place, PlaceRequest, give_up_places};
use std::fs;

#[test]
fn an_end_at_once_gives_up_every_place() {
    let folder = tempfile::tempdir().unwrap();
    let contents = Contents { name: "results", writes: |_| true, is_ours: |_| false };
    let claim = |name: &str| {
        let path = folder.path().join(name);
        let request =
            PlaceRequest { path: &path, option: "-o", existing: Existing::Keep, inputs: &[] };
        Place::files(request, contents).unwrap()
    };
    let (empty, begun) = (claim("new/results"), claim("begun"));
    let (outer, inner) = (claim("outer"), claim("outer/inner"));
    begun.put("results.json", b"{}").unwrap();
    assert!(folder.path().join("new/results").is_dir());
    give_up_places();
    let left = |path: &str| {
        let entries = fs::read_dir(folder.path().join(path)).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(left(""), ["begun"], "what something was put into stays, without a lock");
    assert!(folder.path().join("begun/results.json").is_file());
    // As `_exit` does, nothing is dropped: that would wait for the end of the process.
    std::mem::forget([empty, begun, outer, inner]);
}

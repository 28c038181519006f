//! Less memory than a user's sizes ask for: an error with both sizes before it is taken, and never
//! an abort.

use crate::invocation::Folder;

/// Address space of the process: the program itself fits, and little beside it.
const KIBIBYTES: u32 = 1 << 20;

#[test]
fn inputs_that_cannot_be_drawn_are_refused_with_their_size() {
    let folder = Folder::new();
    // 4,000,000 rows of 64 numbers are 1 GB.
    let line = "profile digits-mlp --batch 4000000 --calls 1 --threads 1 --device cpu";
    folder.within(KIBIBYTES, line).ends(2, &["out of memory", "need"]);
    assert!(folder.files().is_empty());
}

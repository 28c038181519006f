//! Files of the user: opened without surprises, written whole, never over what is not ours.
//!
//! Every crate reads what a user names through `open` and `read`, and writes through a [`Place`]. A
//! place is claimed before the work begins and filled at its end. Invariant: nothing is replaced
//! but files that a manifest of ours lists, and those only where the user said so.

mod about;
mod check;
mod checksum;
mod claim;
mod contents;
mod error;
mod leaf;
mod ledger;
mod lock;
mod manifest;
mod mapped;
mod occupant;
mod open;
mod place;
mod put;
mod room;
mod sets;
mod snapshot;
mod staging;

pub use about::{About, about, worked_on};
pub use check::FolderCheck;
pub use checksum::{Checksum, Digest, hash};
pub use claim::give_up_places;
pub use contents::{Contents, MANIFEST};
pub use error::FileError;
pub use mapped::Mapped;
pub use open::{RESULTS, SETTINGS, TEXT, UNBOUNDED, beginning, open, read, read_text};
pub use place::{Existing, Place, PlaceRequest};
pub use room::check_room;
pub use sets::{ListedFiles, listed_set, remove_sets};
pub use snapshot::{is_folder_of, recovered, snapshot};

//! A place to write to. It is claimed when a command begins, so that everything that could be wrong
//! with it is known before the work. It is filled when the work is done.

use crate::claim::{Claim, locked};
use crate::contents::{Contents, PlaceKind};
use crate::ledger::Ledger;
use crate::lock::{Lock, NoLock};
use crate::manifest::Manifest;
use crate::staging::{Staging, beside, keep, put_in_place, recover};
use crate::{FileError, MANIFEST};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Whether an output may replace an earlier one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Existing {
    /// Anything that exists at the place is an error.
    Keep,
    /// Anything that exists at the place is replaced, if we wrote it.
    Replace,
}

/// A user's request for a place.
#[derive(Copy, Clone, Debug)]
pub struct PlaceRequest<'a> {
    /// The place.
    pub path: &'a Path,
    /// The option that named it, for messages; empty where none did.
    pub option: &'static str,
    /// Whether existing files may be replaced.
    pub existing: Existing,
    /// The files that the command reads, so that they are not replaced by mistake.
    pub inputs: &'a [&'a Path],
}

/// A place that is claimed. It is given up, and left as it was, when this is dropped before it is
/// filled.
#[derive(Debug)]
pub struct Place {
    /// As the user wrote it.
    pub(crate) shown: PathBuf,
    /// Behind links.
    pub(crate) target: PathBuf,
    pub(crate) option: &'static str,
    pub(crate) existing: Existing,
    pub(crate) kind: PlaceKind,
    pub(crate) inputs: Vec<PathBuf>,
    claim: Arc<Mutex<Claim>>,
    pub(crate) ledger: Mutex<Ledger>,
}

impl Place {
    /// Claims the place of a file.
    ///
    /// # Errors
    /// When its folder is absent or refuses, when something else is there, or a file that is not to
    /// be replaced.
    pub fn file(request: PlaceRequest<'_>) -> Result<Self, FileError> {
        Self::claim(request, PlaceKind::File)
    }

    /// Claims the place of a folder that appears whole.
    ///
    /// # Errors
    /// When the system refuses, or when the folder holds files that are not ours or not to be
    /// replaced.
    pub fn folder(request: PlaceRequest<'_>, contents: Contents) -> Result<Self, FileError> {
        Self::claim(request, PlaceKind::Folder(contents))
    }

    /// Claims names in a folder, which is made: files appear in it one by one, beside those that
    /// lie there.
    ///
    /// # Errors
    /// As [`Self::folder`], of the files that are to be written.
    pub fn files(request: PlaceRequest<'_>, contents: Contents) -> Result<Self, FileError> {
        let place = Self::claim(request, PlaceKind::Files(contents))?;
        let found = Manifest::read(&place.target)?;
        *place.ledger.lock().expect("no writer panicked") = Ledger::new(found, contents);
        Ok(place)
    }

    /// The place, as the user wrote it.
    pub fn path(&self) -> &Path {
        &self.shown
    }

    fn claim(request: PlaceRequest<'_>, kind: PlaceKind) -> Result<Self, FileError> {
        let PlaceRequest { path, option, existing, inputs } = request;
        let unwritable =
            |source: io::Error| FileError::Unwritable { path: path.to_owned(), option, source };
        let mut place = Self {
            shown: path.to_owned(),
            target: behind_links(path).map_err(unwritable)?,
            option,
            existing,
            kind,
            inputs: inputs.iter().filter_map(|input| input.canonicalize().ok()).collect(),
            claim: Claim::begin(),
            ledger: Mutex::new(Ledger::new(None, kind.contents())),
        };
        place.target = place.located().map_err(unwritable)?;
        place.lock()?;
        recover(&place.target).map_err(unwritable)?;
        if let PlaceKind::Files(_) = kind {
            place.make(&place.target.clone()).map_err(unwritable)?;
            fs::write(place.draft(), b"")
                .and_then(|()| fs::remove_file(place.draft()))
                .map_err(unwritable)?;
        }
        place.check_occupant()?;
        Ok(place)
    }

    /// The place from the root, in a folder that is there.
    fn located(&self) -> io::Result<PathBuf> {
        if let Ok(path) = self.target.canonicalize() {
            return match path.file_name() {
                Some(_) => Ok(path),
                None => Err(io::Error::other("it has no name")),
            };
        }
        let name =
            self.target.file_name().ok_or_else(|| io::Error::other("it has no name"))?.to_owned();
        let parent = self.target.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new(".")).to_owned();
        match self.kind {
            PlaceKind::File => _ = fs::metadata(&parent)?,
            PlaceKind::Folder(_) | PlaceKind::Files(_) => self.make(&parent)?,
        }
        Ok(parent.canonicalize()?.join(name))
    }

    /// Makes a folder and those above it, to be removed again where nothing comes.
    fn make(&self, folder: &Path) -> io::Result<()> {
        let absent: Vec<&Path> = folder
            .ancestors()
            .take_while(|path| !path.as_os_str().is_empty() && !path.exists())
            .collect();
        let mut claim = locked(&self.claim);
        claim.made.extend(absent.into_iter().rev().map(Path::to_owned));
        fs::create_dir_all(folder)
    }

    fn lock(&self) -> Result<(), FileError> {
        let mut claim = locked(&self.claim);
        let outside = Lock::take(&beside(&self.target, "lock"));
        let found = match (outside, self.kind) {
            // A folder may be writable where the one around it is not, as a mounted one is.
            (Err(NoLock::Refused(error)), PlaceKind::Files(_)) if self.target.is_dir() => {
                Lock::take(&self.target.join(".overdrive.lock")).map_err(|_| NoLock::Refused(error))
            }
            (found, _) => found,
        };
        claim.lock = Some(found.map_err(|found| Lock::or_error(&self.shown, self.option, found))?);
        Ok(())
    }

    /// The temporary path of a file that is put into the folder.
    pub(crate) fn draft(&self) -> PathBuf {
        self.target.join(".overdrive.part")
    }

    pub(crate) fn unwritable(&self) -> impl Fn(io::Error) -> FileError + '_ {
        |source| FileError::Unwritable { path: self.shown.clone(), option: self.option, source }
    }

    /// Fills the place of a file or a folder: `write` makes it at the path that it is given. When
    /// that succeeded, it takes its place, a folder with a manifest of all that is in it. Files
    /// that `write` made beside a file take theirs first.
    ///
    /// # Errors
    /// The error of `write` or of the system; nothing is then changed. If the place was taken in
    /// the meantime, the output is kept next to it.
    pub fn fill<T, E: From<FileError>>(
        self,
        write: impl FnOnce(&Path) -> Result<T, E>,
    ) -> Result<T, E> {
        let staging = Staging::new(&self.target).map_err(self.unwritable())?;
        let staged = staging.staged(&self.target);
        let made = write(&staged)?;
        self.finish_staged(&staging, &staged)?;
        Ok(made)
    }

    /// Fills the place of a file with these bytes.
    ///
    /// # Errors
    /// When the system refuses; nothing is then changed.
    pub fn fill_with(self, content: &[u8]) -> Result<(), FileError> {
        let (shown, option) = (self.shown.clone(), self.option);
        self.fill(|path| {
            fs::write(path, content).map_err(|source| FileError::Unwritable {
                path: shown,
                option,
                source,
            })
        })
    }

    fn finish_staged(&self, staging: &Staging, staged: &Path) -> Result<(), FileError> {
        if let PlaceKind::Folder(contents) = self.kind {
            let mut manifest = Manifest::new(contents.name);
            manifest.add_all(staged)?;
            fs::write(staged.join(MANIFEST), manifest.to_json()).map_err(self.unwritable())?;
        }
        let companions = match self.kind {
            PlaceKind::File => staging.beside(staged).map_err(self.unwritable())?,
            PlaceKind::Folder(_) | PlaceKind::Files(_) => vec![],
        };
        for companion in companions {
            let name = companion.file_name().unwrap_or_default();
            let target = self.target.with_file_name(name);
            if target.exists() && (self.existing == Existing::Keep || !target.is_file()) {
                return Err(FileError::Exists {
                    path: self.shown.with_file_name(name),
                    option: self.option,
                    what: "exists".to_owned(),
                });
            }
            staging.settle(&companion).map_err(self.unwritable())?;
            put_in_place(&companion, &target).map_err(self.unwritable())?;
        }
        staging.settle(staged).map_err(self.unwritable())?;
        let placed = self
            .check_occupant()
            .and_then(|()| put_in_place(staged, &self.target).map_err(self.unwritable()));
        placed.map_err(|reason| match keep(staged, &self.target) {
            Ok(kept) => FileError::Kept { reason: reason.into(), kept },
            Err(_) => reason,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        locked(&self.claim).give_up();
    }
}

/// The meaning of a path whose last part is a link, whether or not something is there.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    /// As many as Linux follows.
    const MOST: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MOST {
        match fs::read_link(&path) {
            Ok(link) => path = path.parent().unwrap_or(Path::new("")).join(link),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("its links lead in a circle"))
}

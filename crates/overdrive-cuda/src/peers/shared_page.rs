//! `SharedPage`: words of host memory that processes of one host share.
//!
//! Only ranks that really share memory can open each other's page. No name of a host, which
//! containers make up, has to be believed. Invariant: the page's name lasts until `hide`, the page
//! itself as long as somebody has it.

use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a page: a whole one for the system, however large its pages are.
pub(super) const BYTES: usize = 64 << 10;

/// Words of a page.
pub(super) const WORDS: usize = BYTES / size_of::<AtomicU32>();

/// Words that are zero at first.
#[derive(Debug)]
pub(super) struct SharedPage {
    start: *mut AtomicU32,
    /// The name by which others can still open it.
    name: Option<String>,
}

// SAFETY: the words are atomic, and the mapping is owned.
unsafe impl Send for SharedPage {}
// SAFETY: as above.
unsafe impl Sync for SharedPage {}

/// Whether a page must be new or must be there.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Opening {
    New,
    Known,
}

fn name(id: u64) -> String {
    format!("/overdrive-{id:016x}")
}

impl SharedPage {
    /// A new page. Its id is to be random, so that no other program has it.
    pub(super) fn create(id: u64) -> Result<Self, String> {
        let start = map(&name(id), Opening::New)?;
        Ok(Self { start, name: Some(name(id)) })
    }

    /// The page that another process or thread of this host has created.
    pub(super) fn open(id: u64) -> Result<Self, String> {
        Ok(Self { start: map(&name(id), Opening::Known)?, name: None })
    }

    /// Takes the name away: nobody else is to open it.
    pub(super) fn hide(&mut self) {
        if let Some(name) = self.name.take() {
            remove(&name);
        }
    }

    /// The first word.
    pub(super) fn start(&self) -> *mut AtomicU32 {
        self.start
    }

    /// Writes a word from the host.
    pub(super) fn store(&self, word: usize, value: u32) {
        assert!(word < WORDS, "a page has {WORDS} words");
        // SAFETY: inside of the mapping, which lives as long as `self`.
        unsafe { (*self.start.add(word)).store(value, Ordering::SeqCst) };
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        self.hide();
        unmap(self.start);
    }
}

#[cfg(unix)]
fn map(name: &str, opening: Opening) -> Result<*mut AtomicU32, String> {
    use rustix::fs::{Mode, ftruncate};
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    use rustix::shm::{self, OFlags};
    let said = |error: rustix::io::Errno| format!("shared memory `{name}`: {error}");
    let flags = match opening {
        Opening::New => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        Opening::Known => OFlags::RDWR,
    };
    let file = shm::open(name, flags, Mode::RUSR | Mode::WUSR).map_err(said)?;
    let mapped = || {
        if opening == Opening::New {
            ftruncate(&file, BYTES as u64)?;
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the system chooses.
        unsafe { mmap(std::ptr::null_mut(), BYTES, protection, MapFlags::SHARED, &file, 0) }
    };
    let start = mapped().map_err(|error| {
        if opening == Opening::New {
            remove(name);
        }
        said(error)
    })?;
    Ok(start.cast())
}

#[cfg(unix)]
fn unmap(start: *mut AtomicU32) {
    // SAFETY: mapped once with this size, and nobody uses it any more. An error would leave the
    // page mapped, which harms nobody.
    let _ = unsafe { rustix::mm::munmap(start.cast(), BYTES) };
}

#[cfg(unix)]
fn remove(name: &str) {
    // A page without a name to remove is what is wanted.
    let _ = rustix::shm::unlink(name);
}

#[cfg(not(unix))]
fn map(_: &str, _: Opening) -> Result<*mut AtomicU32, String> {
    Err("processes of this system share no memory by name".to_owned())
}

#[cfg(not(unix))]
fn unmap(_: *mut AtomicU32) {
    unreachable!("no page was mapped on this system");
}

#[cfg(not(unix))]
fn remove(_: &str) {}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// An id that no other test has.
    fn id(test: u64) -> u64 {
        u64::from(std::process::id()) << 8 | test
    }

    #[test]
    fn words_that_one_writes_are_seen_by_the_other() {
        let mut page = SharedPage::create(id(1)).unwrap();
        let other = SharedPage::open(id(1)).unwrap();
        page.hide();
        assert!(SharedPage::open(id(1)).is_err(), "it has no name any more");
        other.store(WORDS - 1, 7);
        // SAFETY: the last word of the page, which lives.
        let word = unsafe { &*page.start().add(WORDS - 1) };
        assert_eq!(word.load(Ordering::SeqCst), 7);
        // SAFETY: the first word of the page, which lives.
        let first = unsafe { &*page.start() };
        assert_eq!(first.load(Ordering::SeqCst), 0, "a page begins with zeros");
        drop(page);
        other.store(0, 1);
    }

    #[test]
    fn a_page_is_created_once_and_opened_only_where_it_is() {
        assert!(SharedPage::open(id(2)).is_err());
        let page = SharedPage::create(id(2)).unwrap();
        assert!(SharedPage::create(id(2)).is_err());
        drop(page);
        assert!(SharedPage::open(id(2)).is_err(), "its name ends with it");
    }
}

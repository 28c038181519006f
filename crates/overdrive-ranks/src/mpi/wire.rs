//! `Wire`: the MPI calls. Only starting and ending block.
//!
//! Invariant: MPI holds no pointer to memory that is freed. A `Flight` owns its bytes, and leaks
//! them if it is dropped before MPI is done with them.
#![allow(unsafe_code)]

use crate::frame::Frame;
use mpi::environment::{Threading, Universe, initialize_with_threading, library_version};
use mpi::request::{Request, StaticScope};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, Destination, MatchedReceiveVec, Source};
use std::mem::{self, ManuallyDrop};
use std::{io, ptr};

/// Tag of frames.
const FRAME: i32 = 1;

/// Tag of the bytes that ranks show.
const BYTES: i32 = 2;

/// Most bytes of a message: MPI counts them in 31 bits.
const PIECE: usize = 1 << 22;

/// This process in MPI.
pub(super) struct Wire {
    universe: ManuallyDrop<Universe>,
    world: SimpleCommunicator,
}

/// Bytes that MPI sends or receives.
pub(super) struct Flight {
    bytes: Vec<u8>,
    /// With the rank at the other end.
    requests: Vec<(usize, Request<'static, [u8], StaticScope>)>,
}

impl Flight {
    /// Lets MPI go on. A rank that it waits for, and how many messages are under way; `None` once
    /// it is done with the bytes.
    pub(super) fn waits_for(&mut self) -> Option<(usize, usize)> {
        while let Some((rank, request)) = self.requests.pop() {
            if let Err(request) = request.test() {
                self.requests.push((rank, request));
                return Some((rank, self.requests.len()));
            }
        }
        None
    }

    /// The bytes, once MPI is done with them.
    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        assert!(self.requests.is_empty(), "MPI still uses the bytes");
        mem::take(&mut self.bytes)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if !self.requests.is_empty() {
            mem::forget(mem::take(&mut self.bytes));
            self.requests.drain(..).for_each(|(_, request)| mem::forget(request));
        }
    }
}

impl Wire {
    /// Starts MPI as rank `rank` of `size`. It waits for all ranks without a limit. All calls come
    /// from this thread.
    ///
    /// # Errors
    /// When MPI says something else than the launcher; what, and how to mend it.
    pub(super) fn start(rank: usize, size: usize) -> Result<Self, String> {
        let started = initialize_with_threading(Threading::Funneled);
        let Some((universe, level)) = started else {
            return Err("expected to start MPI once in a process, found it started".to_owned());
        };
        let universe = ManuallyDrop::new(universe);
        let world = universe.world();
        let found = (world.rank() as usize, world.size() as usize);
        if found != (rank, size) {
            let library = library_version().unwrap_or_default();
            return Err(format!(
                "expected rank {rank} of {size}, as mpirun says, found rank {} of {} in MPI ({}); \
                 start with the mpirun of that library",
                found.0,
                found.1,
                library.trim_end_matches('\0')
            ));
        }
        if level < Threading::Funneled {
            return Err("expected an MPI library for programs with threads, found one without; \
                        install another"
                .to_owned());
        }
        Ok(Self { universe, world })
    }

    /// Ends MPI. It waits for all ranks without a limit.
    pub(super) fn end(self) {
        drop(ManuallyDrop::into_inner(self.universe));
    }

    /// Sends a frame to these ranks.
    pub(super) fn tell(&self, frame: Vec<u8>, to: impl Iterator<Item = usize>) -> Flight {
        self.send(FRAME, frame, to)
    }

    /// Sends bytes to these ranks, which know how many will come.
    pub(super) fn show(&self, bytes: Vec<u8>, to: impl Iterator<Item = usize>) -> Flight {
        self.send(BYTES, bytes, to)
    }

    fn send(&self, tag: i32, bytes: Vec<u8>, to: impl Iterator<Item = usize>) -> Flight {
        let mut flight = Flight { bytes, requests: vec![] };
        for rank in to {
            let process = self.world.process_at_rank(rank as i32);
            for piece in flight.bytes.chunks(PIECE) {
                // SAFETY: the flight keeps its bytes in place and unchanged until MPI is done.
                let piece: &'static [u8] = unsafe { &*ptr::from_ref(piece) };
                let request = process.immediate_send_with_tag(StaticScope, piece, tag);
                flight.requests.push((rank, request));
            }
        }
        flight
    }

    /// Receives so many bytes that a rank shows.
    pub(super) fn see(&self, from: usize, count: usize) -> Flight {
        let mut flight = Flight { bytes: vec![0; count], requests: vec![] };
        let process = self.world.process_at_rank(from as i32);
        for piece in flight.bytes.chunks_mut(PIECE) {
            // SAFETY: the flight keeps its bytes in place and unread until MPI is done.
            let piece: &'static mut [u8] = unsafe { &mut *ptr::from_mut(piece) };
            let request = process.immediate_receive_into_with_tag(StaticScope, piece, BYTES);
            flight.requests.push((from, request));
        }
        flight
    }

    /// The next frame that has come from any rank, and that rank.
    pub(super) fn hear(&self) -> Option<(usize, io::Result<Frame>)> {
        let found = self.world.any_process().immediate_matched_probe_with_tag(FRAME)?;
        // One of several KiB is waited for. Its sender looks at MPI every few ms while it lives.
        let (bytes, status) = found.matched_receive_vec::<u8>();
        Some((status.source_rank() as usize, Frame::read(&mut &bytes[..], u64::MAX)))
    }
}

//! From the system's signals to the one request to end.
//!
//! The first signal asks: what heeds it keeps what is done and ends, with 130 for SIGINT and 143
//! for SIGTERM and SIGHUP. If nothing heeds it, nothing would be lost, and the process ends at
//! once. So it does at a second signal, with its children. A signal that was ignored when we were
//! started stays ignored: `nohup` counts on it.

use crate::terminal::note;
use overdrive::bench::exit::Exit;
use overdrive::files;
use overdrive_process::{Signal, Stop};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io;

/// Listens from now on, in a thread that sleeps until a signal comes.
pub(crate) fn listen(stop: &Stop) {
    if let Err(error) = register(stop.clone()) {
        note!("note: cannot listen for signals, so any will end the program at once: {error}");
    }
}

#[cfg(unix)]
fn register(stop: Stop) -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGXFSZ};
    // A limit on the size of files (`ulimit -f`) is then an error of the write, as a full disk is.
    signal_hook::flag::register(SIGXFSZ, std::sync::Arc::default())?;
    let ignored = ignored();
    let heard_of =
        [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|number| ignored >> (number - 1) & 1 == 0);
    let mut signals = signal_hook::iterator::Signals::new(heard_of)?;
    let listen = move || {
        for number in signals.forever() {
            // A terminal that goes away may say so twice, by itself and by its shell.
            if number != SIGHUP || !stop.is_requested() {
                heard(&stop, number);
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(listen).map(drop)
}

/// The signals that whoever started us ignores, a bit each; none where the system does not tell.
#[cfg(unix)]
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(not(unix))]
fn register(stop: Stop) -> io::Result<()> {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let came = Arc::new(AtomicUsize::new(0));
    for number in [SIGINT, SIGTERM] {
        signal_hook::flag::register_usize(number, Arc::clone(&came), number as usize)?;
    }
    let listen = move || {
        loop {
            std::thread::sleep(std::time::Duration::from_millis(100));
            match came.swap(0, Ordering::SeqCst) {
                0 => {}
                number => heard(&stop, number as i32),
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(listen).map(drop)
}

fn heard(stop: &Stop, number: i32) {
    let signal = if number == SIGINT { Signal::Interrupt } else { Signal::Terminate };
    let end = || {
        files::give_up_places();
        signal_hook::low_level::exit(i32::from(Exit::from(stop.signal().unwrap_or(signal)).code()))
    };
    if stop.is_requested() {
        stop.kill_children();
        end();
    }
    stop.request(signal);
    stop.unless_heeded(|| {
        note!("interrupted: no unfinished work to keep");
        end();
    });
    note!("interrupted: finished work will be kept; a second signal ends at once");
}

//! The cost of importing ONNX: time and memory beside reading the file once, and the time of a
//! graph of many nodes.
//!
//! `cargo run --release --example import_cost [FILE.onnx]`; without a file, a chain of linear
//! layers of 105 MB is written. Weights share the bytes that were read; a second pair of figures
//! reads every one of them again.

use overdrive::bench::clock::{Clock, SystemClock};
use overdrive::bench::memory::{CountingAllocator, peak_during};
use overdrive::bench::statistics::{Sorted, ratio_of_medians};
use overdrive::formats::onnx::{self, Binding, Dialect, Model};
use overdrive::ir::{Builder, DType, Graph, Init, StateDecl, Tensor, TensorType};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

const SEED: u64 = 1;
const WARM_UP: usize = 3;
const ROUNDS: usize = 25;
const WIDTH: usize = 1024;
const LAYERS: usize = 25;
const NODES: usize = 5_000;

/// `LAYERS` products of 4 MiB weights.
fn wide() -> Result<Graph, Box<dyn Error>> {
    let b = Builder::new("wide");
    let mut x = b.input("x", TensorType::new(DType::F32, [1, WIDTH]));
    for layer in 0..LAYERS {
        let values: Vec<f64> =
            (0..WIDTH * WIDTH).map(|i| ((i + layer) % 97) as f64 / 97.0).collect();
        let weight = Tensor::from_f64(DType::F32, [WIDTH, WIDTH], &values);
        x = x.matmul(b.state_named(&format!("w{layer}"), weight.ty().clone(), Init::Value(weight)));
    }
    b.output("y", x);
    Ok(b.finish()?)
}

/// `NODES` nodes on one vector.
fn long() -> Result<Graph, Box<dyn Error>> {
    let b = Builder::new("long");
    let mut x = b.input("x", TensorType::new(DType::F32, [16]));
    for _ in 0..NODES / 2 {
        x = (x + x).tanh();
    }
    b.output("y", x);
    Ok(b.finish()?)
}

fn import(path: &Path) -> Graph {
    let model = Model::open(path).expect("the file was written by us or is the user's own");
    let sizes =
        model.dimensions().expect("inputs are tensors").into_iter().map(|name| (name, 1)).collect();
    model.graph(&Binding { sizes, ..Binding::default() }).expect("the model can be imported")
}

/// Every byte once.
fn sum(bytes: &[u8]) -> u64 {
    bytes
        .chunks_exact(8)
        .map(|c| u64::from_le_bytes(c.try_into().expect("eight bytes")))
        .fold(0, u64::wrapping_add)
}

fn touch(graph: &Graph) -> u64 {
    let tensor = |s: &StateDecl| s.init.tensor(&s.name, graph.ty(s.value));
    graph.states().iter().map(|s| sum(tensor(s).bytes())).fold(0, u64::wrapping_add)
}

/// Medians in ms of alternating calls, and their ratio, with intervals.
fn compare(names: [&str; 2], mut first: impl FnMut() -> u64, mut second: impl FnMut() -> u64) {
    let clock = SystemClock::new();
    let mut times = [Vec::new(), Vec::new()];
    let take = |call: &mut dyn FnMut() -> u64, into: &mut Vec<f64>| {
        let start = clock.now_ns();
        std::hint::black_box(call());
        into.push((clock.now_ns() - start) as f64);
    };
    for _ in 0..WARM_UP + ROUNDS {
        take(&mut first, &mut times[0]);
        take(&mut second, &mut times[1]);
    }
    let [a, b] = times.map(|times| Sorted::new(&times[WARM_UP..]).expect("every round has a time"));
    for (name, times) in names.into_iter().zip([&a, &b]) {
        let interval = times
            .median_interval()
            .map_or(String::new(), |i| format!(" [{:.3}, {:.3}]", i.low / 1e6, i.high / 1e6));
        println!("{name}: {:.3}{interval} ms", times.median() / 1e6);
    }
    if let Some(r) = ratio_of_medians(&a, &b, SEED) {
        println!(
            "{} over {}: {:.3}x [{:.3}, {:.3}]",
            names[0], names[1], r.ratio, r.interval.low, r.interval.high
        );
    }
}

fn memory(what: &str, path: &Path, bytes: usize, run: impl FnOnce(&Path) -> u64) {
    let (_, usage) = peak_during(Some(&HEAP), || run(path));
    let share = |added: u64| format!("{:.3}x the file", added as f64 / bytes as f64);
    let heap = usage.heap.map_or("not recorded".to_owned(), |heap| share(heap.added_bytes()));
    let resident = usage.resident.map_or("not recorded".to_owned(), |r| share(r.added_bytes()));
    println!("{what}: heap {heap}, resident set {resident}");
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("overdrive-import-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let path = match std::env::args().nth(1) {
        Some(path) => PathBuf::from(path),
        None => {
            let path = folder.join("wide.onnx");
            onnx::write(&path, &wide()?, Dialect::Standard)?;
            path
        }
    };
    let bytes = fs::metadata(&path)?.len() as usize;
    println!("{}: {:.1} MB", path.display(), bytes as f64 / 1e6);
    memory("import", &path, bytes, |path| import(path).states().len() as u64);
    memory("import, every weight read", &path, bytes, |path| touch(&import(path)));
    let read = || fs::read(&path).map_or(0, |bytes| bytes.len() as u64);
    compare(["import", "read the file"], || import(&path).states().len() as u64, read);
    let read_sum = || fs::read(&path).map_or(0, |bytes| sum(&bytes));
    compare(
        ["import, every weight read", "read the file, every byte read"],
        || touch(&import(&path)),
        read_sum,
    );
    let many = folder.join("long.onnx");
    onnx::write(&many, &long()?, Dialect::Standard)?;
    println!("{NODES} nodes, {:.1} kB", fs::metadata(&many)?.len() as f64 / 1e3);
    let read = || fs::read(&many).map_or(0, |bytes| bytes.len() as u64);
    compare(
        ["import of many nodes", "read the file"],
        || import(&many).states().len() as u64,
        read,
    );
    fs::remove_dir_all(&folder)?;
    Ok(())
}

//! Products that a loop over the rows of their result follows (layer_norm after a residual), as one
//! launch.
//!
//! Alone the loop pays for a launch and reads the results that the product has just written.
//! Together the blocks that hold a row are a cluster, and meet where the loop folds. The loop's own
//! result is written while blocks of other rows still read the product's operands. So it may share
//! no byte with them.

use super::candidate::TILES;
use super::compile::{key, renumbered};
use super::hopper::{self, HopperTile, HopperWork};
use crate::launch::{Launch, Refusal, Site};
use crate::loops::Following;
use overdrive_ir::Decline;
use overdrive_ir::plan::{GemmCall, Program, Step, StepKind};

/// Whether one launch can do a product and the loop after it; not where the loop folds nothing of
/// its result.
///
/// # Errors
/// Why it cannot.
pub(crate) fn follows(step: &Step, next: &Step) -> Result<bool, Decline> {
    let Some((call, program)) = followed(&[step, next]) else { return Ok(false) };
    let result = call.epilogue.0.stores[0].access.slot;
    let reads = next.reads.iter().any(|slot| step.writes.contains(slot));
    if !reads || program.reduced == 0 || program.points() == 0 {
        return Ok(false);
    }
    let others = next.reads.iter().any(|slot| *slot != result && step.writes.contains(slot));
    let refusal = match following(call, program) {
        Err(reason) => reason,
        Ok(_) if others || !call.batch.is_empty() => "it reads more than one matrix of the product",
        Ok(_) if !next.aliases.is_empty() => "it takes the place of an operand",
        Ok(_) if tiles(call).is_empty() => {
            "no cluster of at most eight blocks holds a row of 16-bit floats, fp8 or i8 in one \
             wave of tiles that cost less than the loop"
        }
        Ok(_) => return Ok(true),
    };
    Err(Decline::Because(refusal.to_owned()))
}

/// A product and the loop after it, if steps are these.
pub(crate) fn followed<'a>(steps: &[&'a Step]) -> Option<(&'a GemmCall, &'a Program)> {
    let &[step, next] = steps else { return None };
    match (&step.kind, &next.kind) {
        (StepKind::Gemm(call), StepKind::Loop(program)) => Some((call, program)),
        _ => None,
    }
}

fn following<'a>(call: &'a GemmCall, program: &'a Program) -> Result<Following<'a>, &'static str> {
    Following::new(program, &call.epilogue.0.stores[0].access, [call.m, call.n])
}

/// The tiles whose clusters hold whole rows, ordered by the time that the product is expected to
/// take in them. That time, and that of the folds, must not exceed the product's time alone plus
/// the loop's.
///
/// All clusters run at once. Nothing hides the folds at the end of a wave, where a product alone
/// stores a tile under the next. On an H200 [16384, 768] x [768, 768] with a residual and the norm
/// after it takes six waves and 114 us. The product takes 57 us alone, and the loop 25. With 3,072
/// rows, two waves, it is 31.0 beside 26.3 us, and with 2,048, one wave, 18.7 beside 19.3 us.
/// There, places for blocks that fill a multiprocessor each lie in groups: 15 clusters of eight run
/// at once, and sixteen take twice as long.
fn tiles(call: &GemmCall) -> Vec<HopperTile> {
    /// Multiprocessors of an H200, and those of them that clusters of many blocks have.
    const MULTIPROCESSORS: usize = 132;
    const PLACES: usize = MULTIPROCESSORS * 15 / 16;
    /// Cycles of a loop alone on an H200, and bytes that it moves in a cycle.
    const LOOP_CYCLES: f64 = 3500.0;
    const BYTES_OF_CYCLE: f64 = 2000.0;
    /// Cycles that the folds of a tile take for each of its sums: 2.4 us for 128 x 64 sums, and 4.5
    /// to 4.8 us for 128 x 128.
    const FOLD: f64 = 0.5;
    let cycles = |tile: &HopperTile| tile.cycles([call.m, call.n, call.k], 1, MULTIPROCESSORS);
    let mut tiles = hopper::tiles(call, 1, MULTIPROCESSORS as u32);
    let program = &call.epilogue.0;
    let bytes = 2 * call.m * call.n * program.dtype(program.stores[0].value).bits() / 8;
    let most = tiles.first().map_or(0.0, cycles) + LOOP_CYCLES + bytes as f64 / BYTES_OF_CYCLE;
    tiles.retain(|tile| {
        tile.span(call.n).is_some_and(|span| {
            let blocks = call.m.div_ceil(tile.rows) * span;
            let places = if span > 1 { PLACES / span * span } else { MULTIPROCESSORS };
            let folds = FOLD * (tile.rows * tile.columns) as f64;
            blocks <= places && cycles(tile) + folds <= most
        })
    });
    tiles
}

/// The key by which a `Tuning` remembers a product with its loop.
pub(crate) fn key_following(call: &GemmCall, program: &Program) -> String {
    let program = renumbered(program).to_string();
    format!("{} then {}", key(call), program.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Candidates by name, ready to run.
pub(super) type ReadyCandidates = Vec<(String, Box<dyn Launch>)>;

/// Every tile that a product with its loop can be computed in, best guess first.
pub(super) fn candidates(
    site: &Site<'_>,
    (call, program): (&GemmCall, &Program),
) -> Result<ReadyCandidates, Refusal> {
    let following =
        following(call, program).map_err(|reason| Refusal::Unsupported(reason.to_owned()))?;
    let work =
        HopperWork { following: Some(&following), ..HopperWork::of(std::slice::from_ref(call)) };
    let mut all = ReadyCandidates::new();
    for tile in tiles(call).into_iter().take(TILES) {
        all.extend(hopper::compile(site, work, tile)?.map(|launch| (tile.to_string(), launch)));
    }
    Ok(all)
}

/// Compiles a product with its loop: in the remembered tile, else in the best guess.
///
/// # Errors
/// As `compile` of one.
pub(crate) fn compile_following(
    site: &Site<'_>,
    (call, program): (&GemmCall, &Program),
) -> Result<Box<dyn Launch>, Refusal> {
    let following =
        following(call, program).map_err(|reason| Refusal::Unsupported(reason.to_owned()))?;
    let work =
        HopperWork { following: Some(&following), ..HopperWork::of(std::slice::from_ref(call)) };
    let chosen = site.tuning.choices.get(&key_following(call, program));
    let chosen = chosen.and_then(|choice| choice.candidate.parse().ok());
    for tile in chosen.into_iter().chain(tiles(call)) {
        if let Some(launch) = hopper::compile(site, work, tile)? {
            return Ok(launch);
        }
    }
    Err(Refusal::Unsupported(format!("no tile takes {}", key_following(call, program))))
}

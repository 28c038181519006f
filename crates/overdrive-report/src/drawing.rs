//! Charts as files: ECharts in an embedded JavaScript engine draws an option as SVG, resvg turns
//! that into PNG. No browser, no network, no font of the system: the same option gives the same
//! picture on every machine.
//!
//! It is not part of `report` because it needs threads. ECharts recurses deeper than the stack of
//! an ordinary thread allows. Pixels are painted on one thread while the next chart is drawn on
//! another.

mod engine;
mod painter;

use std::sync::mpsc;
use std::thread;

use crate::charts::{Chart, NARROW, WIDTH};
use engine::Engine;
use painter::Painter;

/// Stack of the engine's thread; ECharts' parser and layout recurse.
const STACK_BYTES: usize = 64 << 20;

/// A chart as two files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// [`Chart::id`].
    pub id: String,
    /// A whole SVG document, in the light palette, on a transparent ground.
    pub svg: String,
    /// The same as PNG at twice the resolution, on white.
    pub png: Vec<u8>,
}

/// A chart that could not be drawn: a fault of ours, since options come from our own code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "chart `{id}` cannot be drawn: {reason}; the report without plots is whole, please report this"
)]
pub struct DrawError {
    /// The chart.
    pub id: String,
    /// The error of the engine or the rasteriser.
    pub reason: String,
}

/// Draws every chart, in order.
///
/// # Errors
/// The first chart that engine or rasteriser refuse.
pub fn draw(charts: &[Chart]) -> Result<Vec<Picture>, DrawError> {
    if charts.is_empty() {
        return Ok(Vec::new());
    }
    let (drawn, to_paint) = mpsc::channel::<(String, String)>();
    thread::scope(|scope| {
        let engine = thread::Builder::new()
            .name("charts".into())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, move || -> Result<(), DrawError> {
                let engine =
                    Engine::new(STACK_BYTES / 2).map_err(|reason| failed("all", reason))?;
                for chart in charts {
                    let svg = svg(&engine, chart, WIDTH)?;
                    if drawn.send((chart.id.clone(), svg)).is_err() {
                        // The painter has stopped and says why.
                        break;
                    }
                }
                Ok(())
            })
            .map_err(|error| failed("all", error))?;
        let painter = Painter::new();
        let pictures: Result<Vec<Picture>, DrawError> = to_paint
            .into_iter()
            .map(|(id, svg)| match painter.png(&svg) {
                Ok(png) => Ok(Picture { id, svg, png }),
                Err(reason) => Err(failed(&id, reason)),
            })
            .collect();
        engine.join().expect("the engine's thread reports its failures and does not panic")?;
        pictures
    })
}

/// Draws every chart as SVG for a narrow screen, in order.
///
/// # Errors
/// The first chart that the engine refuses.
pub fn draw_narrow(charts: &[Chart]) -> Result<Vec<String>, DrawError> {
    let all = || -> Result<Vec<String>, DrawError> {
        let engine = Engine::new(STACK_BYTES / 2).map_err(|reason| failed("all", reason))?;
        charts.iter().map(|chart| Ok(apart(&svg(&engine, chart, NARROW)?))).collect()
    };
    thread::scope(|scope| {
        let engine = thread::Builder::new().name("charts".into()).stack_size(STACK_BYTES);
        let drawn = engine.spawn_scoped(scope, all).map_err(|error| failed("all", error))?;
        drawn.join().expect("the engine's thread reports its failures and does not panic")
    })
}

/// The picture with other ids. Both pictures of a chart stand in one page, and a reference would
/// find the first one's part, which is hidden.
fn apart(svg: &str) -> String {
    svg.replace("\"zr", "\"narrow-zr").replace("#zr", "#narrow-zr").replace(".zr", ".narrow-zr")
}

fn svg(engine: &Engine, chart: &Chart, width: u32) -> Result<String, DrawError> {
    engine.svg(chart, width).map_err(|reason| failed(&chart.id, reason))
}

fn failed(id: &str, reason: impl ToString) -> DrawError {
    DrawError { id: id.to_owned(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests;

//! ECharts in QuickJS.

use rquickjs::{CatchResultExt, Context, Function, Runtime};

use crate::charts::{Chart, ECHARTS, SCRIPT};

/// Globals that ECharts needs even without a browser. A timer that called back at once would
/// recurse without end, so none ever fires: a chart without animation needs none.
const SURROUNDINGS: &str = "globalThis.setTimeout = () => 0; globalThis.clearTimeout = () => {};
    globalThis.self = globalThis; globalThis.navigator = { userAgent: '' }; globalThis.console = \
                            { log() {}, warn() {}, error() {} };";

/// An engine that has read ECharts once and draws many charts.
pub(super) struct Engine {
    context: Context,
}

impl Engine {
    /// Reads the scripts; `stack_bytes` is what recursion may take of the thread's stack.
    pub(super) fn new(stack_bytes: usize) -> Result<Self, String> {
        let runtime = Runtime::new().map_err(|error| error.to_string())?;
        runtime.set_max_stack_size(stack_bytes);
        let context = Context::full(&runtime).map_err(|error| error.to_string())?;
        // `const` of one script is not seen as a property of the global object, so the drawing
        // function is.
        let export = "globalThis.draw = (option, width, height) => \
                      OverdriveCharts.draw(JSON.parse(option), width, height);";
        context.with(|ctx| {
            [SURROUNDINGS, ECHARTS, SCRIPT, export].into_iter().try_for_each(|source| {
                ctx.eval::<(), _>(source).catch(&ctx).map_err(|error| error.to_string())
            })
        })?;
        Ok(Self { context })
    }

    /// The chart as an SVG document of this width.
    pub(super) fn svg(&self, chart: &Chart, width: u32) -> Result<String, String> {
        self.context.with(|ctx| {
            let draw: Function<'_> =
                ctx.globals().get("draw").map_err(|error| error.to_string())?;
            let arguments = (chart.option.to_string(), width, chart.height);
            draw.call(arguments).catch(&ctx).map_err(|error| error.to_string())
        })
    }
}

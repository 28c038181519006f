//! The text in front of `convolution.cu`: types, extents, and where pixels, taps and weights are.
//!
//! All numbers are printed, so that the compiler turns divisions by extents into multiplications.

use std::fmt::Write;

use overdrive_ir::plan::{ConvolutionCall, WindowDimension};

/// A convolution's numbers as the printer needs them.
pub(super) struct Geometry<'a> {
    call: &'a ConvolutionCall,
    /// Extents of the input, the kernel and the result, spatial ones from the third on.
    input: Vec<usize>,
    kernel: Vec<usize>,
    output: Vec<usize>,
}

impl<'a> Geometry<'a> {
    pub(super) fn new(call: &'a ConvolutionCall) -> Self {
        let (input, kernel) = (call.input.ty.sizes(), call.kernel.ty.sizes());
        Self { call, input, kernel, output: call.epilogue.0.extents.clone() }
    }

    /// Output channels of a group.
    pub(super) fn outputs(&self) -> usize {
        self.kernel[0] / self.call.groups
    }

    /// Output pixels of all images.
    pub(super) fn pixels(&self) -> usize {
        self.output[0] * self.output[2..].iter().product::<usize>()
    }

    /// Products behind each sum.
    pub(super) fn depth(&self) -> usize {
        self.kernel[1..].iter().product()
    }

    fn spatial(&self) -> impl Iterator<Item = (usize, &WindowDimension)> {
        self.call.window.iter().enumerate()
    }

    /// Types, extents and functions; `offset` is the type of an element offset.
    pub(super) fn print(&self, offset: &str) -> String {
        let call = self.call;
        let taps: usize = self.kernel[2..].iter().product();
        let mut text = String::from("#include \"loop.cuh\"\n");
        let mut line = |content: String| writeln!(text, "{content}").expect("a string grows");
        line(format!("typedef {} Element;", call.input.ty.dtype));
        line(format!("typedef {} Partial;", call.accumulate));
        line(format!("typedef {offset} Offset;"));
        line(format!("constexpr int GROUPS = {}, OUTPUTS = {};", call.groups, self.outputs()));
        // Without channels there is nothing to read, and nothing divides by zero.
        line(format!(
            "constexpr int CHANNELS = {}, TAPS = {taps}, K = {};",
            self.kernel[1].max(1),
            self.depth()
        ));
        line(format!(
            "constexpr Offset PIXELS = {}, CHANNEL_STRIDE = {};",
            self.pixels(),
            call.input.strides[1]
        ));
        line(self.pixel());
        line(self.tap());
        line(self.source());
        line(self.weight());
        text
    }

    /// `Pixel`: where the window of an output pixel begins in the input, per axis and, where no
    /// zeros are inserted, as an offset.
    fn pixel(&self) -> String {
        let fields: String = self.spatial().map(|(d, _)| format!(" i32 at{d};")).collect();
        let mut text = format!("struct Pixel {{ bool exists; Offset base;{fields} }};\n");
        text += "__device__ __forceinline__ Pixel pixel(Offset n) {\n";
        text += "    Pixel p;\n    p.exists = n < PIXELS;\n";
        text += "    Offset rest = n;\n";
        for (d, WindowDimension { stride, pad_low, .. }) in
            self.spatial().collect::<Vec<_>>().into_iter().rev()
        {
            let extent = self.output[2 + d].max(1);
            let _ = writeln!(
                text,
                "    p.at{d} = (i32)(rest % {extent}) * {stride} - ({pad_low});\n    rest /= \
                 {extent};"
            );
        }
        let _ = writeln!(text, "    p.base = rest * ({});", self.call.input.strides[0]);
        for (d, _) in self.spatial().filter(|(_, dim)| dim.input_dilation == 1) {
            let _ = writeln!(
                text,
                "    p.base += (Offset)p.at{d} * ({});",
                self.call.input.strides[2 + d]
            );
        }
        text + "    return p;\n}"
    }

    /// `Tap`: how far a tap is from the first.
    fn tap(&self) -> String {
        let fields: String = self.spatial().map(|(d, _)| format!(" i32 at{d};")).collect();
        let mut text = format!("struct Tap {{ Offset offset;{fields} }};\n");
        text += "__device__ __forceinline__ Tap tap(int t) {\n    Tap a;\n    a.offset = 0;\n";
        for (d, dimension) in self.spatial().collect::<Vec<_>>().into_iter().rev() {
            let (extent, dilation) = (self.kernel[2 + d], dimension.kernel_dilation);
            let _ = writeln!(text, "    a.at{d} = t % {extent} * {dilation};\n    t /= {extent};");
            if dimension.input_dilation == 1 {
                let _ = writeln!(
                    text,
                    "    a.offset += (Offset)a.at{d} * ({});",
                    self.call.input.strides[2 + d]
                );
            }
        }
        text + "    return a;\n}"
    }

    /// `source`: whether a tap of a pixel is an element of the input, and which.
    fn source(&self) -> String {
        let mut text = String::from(
            "__device__ __forceinline__ bool source(const Pixel& p, const Tap& t, Offset& from) \
             {\n    \
             bool inside = p.exists;\n    from = p.base + t.offset;\n",
        );
        for (d, WindowDimension { input_dilation, .. }) in self.spatial() {
            let (extent, stride) = (self.input[2 + d], self.call.input.strides[2 + d]);
            let at = format!("(p.at{d} + t.at{d})");
            let _ = match input_dilation {
                1 => writeln!(text, "    inside = inside && (u32){at} < {extent}u;"),
                by => writeln!(
                    text,
                    "    inside = inside && {at} >= 0 && {at} % {by} == 0 && {at} / {by} < \
                     {extent};\n    \
                     from += (Offset)({at} / {by}) * ({stride});"
                ),
            };
        }
        text + "    return inside;\n}"
    }

    /// `weight`: offset of the weight of an output channel (of all groups), a channel of its group,
    /// and a tap.
    fn weight(&self) -> String {
        let strides = &self.call.kernel.strides;
        let mut text = format!(
            "__device__ __forceinline__ Offset weight(int o, int c, int t) {{\n    \
             Offset at = (Offset)o * ({}) + (Offset)c * ({});\n",
            strides[0], strides[1]
        );
        for d in (0..self.call.window.len()).rev() {
            let (extent, stride) = (self.kernel[2 + d], strides[2 + d]);
            let _ = writeln!(
                text,
                "    at += (Offset)(t % {extent}) * ({stride});\n    t /= {extent};"
            );
        }
        text + "    return at;\n}"
    }
}

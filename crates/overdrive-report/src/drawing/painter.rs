//! SVG to pixels.

use std::sync::Arc;

use resvg::tiny_skia::{Color, Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

use crate::charts::FONTS;

/// Pixels to a CSS pixel: sharp in print at the width of a column.
const SCALE: f32 = 2.0;

/// Options and fonts, read once.
pub(super) struct Painter {
    options: Options<'static>,
}

impl Painter {
    pub(super) fn new() -> Self {
        let mut fonts = fontdb::Database::new();
        for font in FONTS {
            fonts.load_font_data(font.to_vec());
        }
        fonts.set_sans_serif_family("Roboto");
        let options =
            Options { font_family: "Roboto".into(), fontdb: Arc::new(fonts), ..Options::default() };
        Self { options }
    }

    /// The document as PNG on white.
    pub(super) fn png(&self, svg: &str) -> Result<Vec<u8>, String> {
        let tree = Tree::from_str(svg, &self.options).map_err(|error| error.to_string())?;
        let size = tree.size().to_int_size().scale_by(SCALE).ok_or("the chart has no size")?;
        let mut pixels =
            Pixmap::new(size.width(), size.height()).ok_or("the chart is too large")?;
        pixels.fill(Color::WHITE);
        resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
        pixels.encode_png().map_err(|error| error.to_string())
    }
}

//! Plot of active trajectories over length: the work of separate sequences and of trees at each
//! position.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use indicatif::HumanCount;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use tree_pack::{ActiveOverLength, TreeStats};

use crate::output::NewFile;

const TREE: RGBColor = RGBColor(31, 111, 180);
const FLAT: RGBColor = RGBColor(236, 129, 34);
const GRID: RGBColor = RGBColor(228, 228, 228);
const TEXT: RGBColor = RGBColor(60, 60, 60);
const SIZE: (u32, u32) = (1100, 560);
/// The name that plotters uses for unknown fonts.
const FONT: &str = "sans-serif";

/// Draws the two curves; the area between them is the saved computation.
///
/// The file name determines the format: PNG or SVG.
pub fn draw(path: &Path, title: &str, active: &ActiveOverLength, stats: &TreeStats) -> Result<()> {
    // A server may have no fonts, so the program contains one. Repeated registration is harmless.
    let font = epaint_default_fonts::UBUNTU_LIGHT;
    register_font(FONT, FontStyle::Normal, font).map_err(|_| anyhow!("the font is not valid"))?;
    let file = NewFile::create(path)?;
    let drawn = match path.extension().and_then(|extension| extension.to_str()) {
        Some("png") => draw_png(file.unfinished_path(), title, active, stats),
        Some("svg") => {
            let area = SVGBackend::new(file.unfinished_path(), SIZE).into_drawing_area();
            chart(&area, title, active, stats).map_err(|error| anyhow!("{error}"))
        }
        _ => bail!("{}: a plot is a .png or .svg file", path.display()),
    };
    drawn.with_context(|| format!("{}: cannot be drawn", path.display()))?;
    file.finish()
}

fn draw_png(path: &Path, title: &str, active: &ActiveOverLength, stats: &TreeStats) -> Result<()> {
    let (width, height) = SIZE;
    let mut pixels = vec![0; 3 * width as usize * height as usize];
    {
        let area = BitMapBackend::with_buffer(&mut pixels, SIZE).into_drawing_area();
        chart(&area, title, active, stats).map_err(|error| anyhow!("{error}"))?;
    }
    let mut encoder = png::Encoder::new(File::create(path)?, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    Ok(writer.finish()?)
}

fn chart<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    title: &str,
    active: &ActiveOverLength,
    stats: &TreeStats,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let longest = active.trajectories.len().max(1) as f64;
    let most = active
        .trajectories
        .iter()
        .copied()
        .max()
        .unwrap_or(1)
        .max(1) as f64;
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 22).into_font().color(&TEXT))
        .margin(16)
        .x_label_area_size(52)
        .y_label_area_size(72)
        .build_cartesian_2d(0.0..longest * 1.01, 0.0..most * 1.06)?;
    let count = |value: &f64| HumanCount(value.round() as u64).to_string();
    chart
        .configure_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(GRID)
        .x_desc("tokens from the start of the trajectory")
        .y_desc("active at this length")
        .x_label_formatter(&count)
        .y_label_formatter(&count)
        .label_style((FONT, 15).into_font().color(&TEXT))
        .axis_desc_style((FONT, 17).into_font().color(&TEXT))
        .draw()?;
    // Opaque colours: the lower area covers a part of the upper one.
    let curves = [
        (&active.trajectories, FLAT, "trajectories", stats.tokens),
        (
            &active.tree_tokens,
            TREE,
            "branches of the trees",
            stats.unique_tokens,
        ),
    ];
    for (counts, color, name, tokens) in curves {
        let points = steps(counts);
        chart.draw_series(AreaSeries::new(points.iter().copied(), 0.0, pale(color)))?;
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(format!("{name}: area {} tokens", HumanCount(tokens)))
            .legend(move |(x, y)| Rectangle::new([(x, y - 6), (x + 18, y + 6)], color.filled()));
    }
    let gain = format!(
        "POR {:.1} %, token bound {:.2}x",
        100.0 * stats.prefix_overlap_ratio(),
        stats.token_bound()
    );
    chart
        .draw_series(std::iter::empty::<Circle<(f64, f64), i32>>())?
        .label(gain)
        .legend(|(x, y)| EmptyElement::at((x, y)));
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .margin(14)
        .background_style(WHITE.mix(0.9))
        .border_style(GRID)
        .label_font((FONT, 16).into_font().color(&TEXT))
        .draw()?;
    area.present()
}

fn pale(color: RGBColor) -> RGBColor {
    let [red, green, blue] = [color.0, color.1, color.2].map(|channel| 255 - (255 - channel) / 4);
    RGBColor(red, green, blue)
}

/// Corners of the step curve through `counts`; constant runs have only two corners.
fn steps(counts: &[u64]) -> Vec<(f64, f64)> {
    let mut corners = Vec::new();
    let mut start = 0;
    for run in counts.chunk_by(|left, right| left == right) {
        let end = start + run.len();
        corners.push((start as f64, run[0] as f64));
        corners.push((end as f64, run[0] as f64));
        start = end;
    }
    corners.push((start as f64, 0.0));
    corners
}

//! Plots of a run as PNG: the loss curve, the speed-up and metrics.

use std::ops::Range;
use std::path::Path;
use std::sync::Once;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use crate::report::metrics::{ComparisonRecord, StepRecord, VariantRecord};
use crate::run::atomic;

const TREE: RGBColor = RGBColor(31, 111, 180);
const FLAT: RGBColor = RGBColor(236, 129, 34);
const VALIDATION: RGBColor = RGBColor(60, 140, 70);
const GRID: RGBColor = RGBColor(228, 228, 228);
const TEXT: RGBColor = RGBColor(60, 60, 60);
/// The font that plotters uses for unknown names.
const FONT: &str = "sans-serif";

type Figure<'a> = DrawingArea<BitMapBackend<'a>, Shift>;
/// The error of a plot.
pub type PlotError = Box<dyn std::error::Error + Send + Sync>;

/// Plots the loss of every step over steps and over training time, of both variants if the run
/// compares them.
///
/// # Errors
/// If there are no records, or the file cannot be written; an existing file is then unchanged.
pub fn loss_curve(path: &Path, records: &[StepRecord]) -> Result<(), PlotError> {
    let tree = Curve::new(records, |record| record.tree.as_ref());
    let flat = Curve::new(records, |record| record.flat.as_ref());
    let validation: Vec<(f64, f64)> = records
        .iter()
        .filter_map(|record| Some((record.step as f64, record.validation_loss?)))
        .collect();
    let losses = || {
        let trained = tree.losses.iter().chain(&flat.losses).copied();
        trained.chain(validation.iter().map(|point| point.1))
    };
    let y = padded(losses()).ok_or("no steps to draw")?;
    let last_step = records.last().map_or(1.0, |record| record.step as f64);
    let last_second = tree.seconds.last().into_iter().chain(flat.seconds.last());
    let last_second = last_second.fold(0.0_f64, |a, &b| a.max(b));

    draw(path, (1280, 520), |figure| {
        let (left, right) = figure.split_horizontally(640);
        let mut chart = ChartBuilder::on(&left)
            .caption("Loss by step", (FONT, 22).into_font().color(&TEXT))
            .margin(14)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..last_step * 1.02, y.clone())?;
        mesh(&mut chart, "optimizer step", "loss")?;
        // The flat curve is wider, so that both are visible where they coincide.
        for (curve, name, color, width) in [
            (&flat, "separate trajectories", FLAT, 6),
            (&tree, "trees", TREE, 2),
        ] {
            if !curve.losses.is_empty() {
                let points = curve
                    .steps
                    .iter()
                    .copied()
                    .zip(curve.losses.iter().copied());
                let style = color.stroke_width(width);
                chart
                    .draw_series(LineSeries::new(points, style))?
                    .label(name)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], style));
            }
        }
        if !validation.is_empty() {
            let dot = |(x, y)| Circle::new((x, y), 4, VALIDATION.filled());
            chart
                .draw_series(validation.iter().copied().map(dot))?
                .label("validation")
                .legend(|(x, y)| Circle::new((x + 11, y), 4, VALIDATION.filled()));
        }
        legend(&mut chart, SeriesLabelPosition::UpperRight)?;

        let mut chart = ChartBuilder::on(&right)
            .caption("Loss by training time", (FONT, 22).into_font().color(&TEXT))
            .margin(14)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..last_second * 1.02, y)?;
        mesh(&mut chart, "seconds in training steps", "loss")?;
        for (curve, color, width) in [(&flat, FLAT, 3), (&tree, TREE, 2)] {
            let points = curve
                .seconds
                .iter()
                .copied()
                .zip(curve.losses.iter().copied());
            chart.draw_series(LineSeries::new(points, color.stroke_width(width)))?;
        }
        Ok(())
    })
}

/// Plots the speed-up of every compared step with its two bounds.
///
/// # Errors
/// If no step was compared, or the file cannot be written; an existing file is then unchanged.
pub fn speedup(path: &Path, records: &[StepRecord]) -> Result<(), PlotError> {
    let compared: Vec<_> = records
        .iter()
        .filter_map(|record| Some((record.step as f64, record.comparison?)))
        .collect();
    let highest = compared
        .iter()
        .flat_map(|(_, c)| [c.speedup, c.token_bound, c.step_bound])
        .fold(f64::NAN, f64::max);
    let last_step = compared.last().ok_or("no compared steps to draw")?.0;

    draw(path, (900, 520), |figure| {
        let mut chart = ChartBuilder::on(figure)
            .caption(
                "Speed-up of a training step",
                (FONT, 22).into_font().color(&TEXT),
            )
            .margin(14)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(0.4..last_step + 0.6, 0.0..highest * 1.4)?;
        mesh(
            &mut chart,
            "optimizer step",
            "speed-up over separate trajectories",
        )?;
        let bar = |&(step, c): &(f64, ComparisonRecord)| {
            Rectangle::new(
                [(step - 0.36, 0.0), (step + 0.36, c.speedup)],
                TREE.mix(0.75).filled(),
            )
        };
        chart
            .draw_series(compared.iter().map(bar))?
            .label("achieved")
            .legend(|(x, y)| {
                Rectangle::new([(x, y - 6), (x + 22, y + 6)], TREE.mix(0.75).filled())
            });
        type Bound = fn(&ComparisonRecord) -> f64;
        let bounds: [(&str, RGBColor, Bound); 2] = [
            ("step bound (FLOPs)", BLACK, |c| c.step_bound),
            ("token bound, 1 / (1 - POR)", FLAT, |c| c.token_bound),
        ];
        for (name, color, bound) in bounds {
            let style = color.stroke_width(3);
            // One short line above each bar, because the bound differs between steps.
            let line = |(step, c): &(f64, _)| {
                PathElement::new([(step - 0.46, bound(c)), (step + 0.46, bound(c))], style)
            };
            chart
                .draw_series(compared.iter().map(line))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], style));
        }
        let one = [(0.4, 1.0), (last_step + 0.6, 1.0)];
        chart.draw_series(DashedLineSeries::new(one, 6, 5, TEXT.stroke_width(1)))?;
        legend(&mut chart, SeriesLabelPosition::UpperRight)?;
        Ok(())
    })
}

/// Plots the metrics `names` of every step, one panel each, of both variants if the run compares
/// them. Metrics without values are left out.
///
/// # Errors
/// If there are no values, or the file cannot be written; an existing file is then unchanged.
pub fn metrics(path: &Path, records: &[StepRecord], names: &[&str]) -> Result<(), PlotError> {
    const WIDTH: u32 = 480;
    const HEIGHT: u32 = 320;
    type VariantOf = fn(&StepRecord) -> Option<&VariantRecord>;
    let variants: [(VariantOf, RGBColor, u32); 2] = [
        (|record| record.flat.as_ref(), FLAT, 6),
        (|record| record.tree.as_ref(), TREE, 2),
    ];
    let points = |name: &str, variant: VariantOf| -> Vec<(f64, f64)> {
        let point = |record: &StepRecord| {
            let value = *variant(record)?.metrics.get(name)?;
            Some((record.step as f64, value))
        };
        records.iter().filter_map(point).collect()
    };
    let panels: Vec<_> = names
        .iter()
        .filter_map(|name| {
            let all = variants
                .iter()
                .flat_map(|(variant, ..)| points(name, *variant));
            Some((name, padded(all.map(|point| point.1))?))
        })
        .collect();
    let last_step = records.last().map_or(1.0, |record| record.step as f64);
    let columns = panels.len().min(3);
    if columns == 0 {
        return Err("no metrics to draw".into());
    }
    let rows = panels.len().div_ceil(columns);
    let size = (WIDTH * columns as u32, HEIGHT * rows as u32);
    draw(path, size, |figure| {
        let areas = figure.split_evenly((rows, columns));
        for ((name, y), area) in panels.into_iter().zip(areas) {
            let mut chart = ChartBuilder::on(&area)
                .caption(name, (FONT, 20).into_font().color(&TEXT))
                .margin(12)
                .x_label_area_size(40)
                .y_label_area_size(60)
                .build_cartesian_2d(0.0..last_step * 1.02, y)?;
            chart
                .configure_mesh()
                .light_line_style(TRANSPARENT)
                .bold_line_style(GRID)
                .axis_style(TEXT)
                .label_style((FONT, 14).into_font().color(&TEXT))
                .x_desc("optimizer step")
                .draw()?;
            for (variant, color, width) in variants {
                let line = LineSeries::new(points(name, variant), color.stroke_width(width));
                chart.draw_series(line)?;
            }
        }
        Ok(())
    })
}

/// The losses of one variant.
struct Curve {
    steps: Vec<f64>,
    losses: Vec<f64>,
    /// Accumulated training time after each step.
    seconds: Vec<f64>,
}

impl Curve {
    fn new(
        records: &[StepRecord],
        variant: impl Fn(&StepRecord) -> Option<&VariantRecord>,
    ) -> Self {
        let mut curve = Self {
            steps: vec![],
            losses: vec![],
            seconds: vec![],
        };
        let mut elapsed = 0.0;
        for record in records {
            if let Some(variant) = variant(record) {
                elapsed += variant.seconds;
                curve.steps.push(record.step as f64);
                curve.losses.push(variant.loss);
                curve.seconds.push(elapsed);
            }
        }
        curve
    }
}

/// A range with a margin around the finite values; `None` without any.
fn padded(values: impl Iterator<Item = f64>) -> Option<Range<f64>> {
    let (low, high) = values
        .filter(|value| value.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
            (low.min(v), high.max(v))
        });
    let margin = ((high - low) * 0.06).max(high.abs() * 1e-3).max(1e-9);
    (low <= high).then_some(low - margin..high + margin)
}

type Chart<'a, 'b> = ChartContext<
    'a,
    BitMapBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

fn mesh(chart: &mut Chart<'_, '_>, x: &str, y: &str) -> Result<(), PlotError> {
    let whole_if_possible = |value: &f64| {
        let rounded = value.round();
        if (value - rounded).abs() < 1e-9 {
            format!("{rounded}")
        } else {
            format!("{value:.1}")
        }
    };
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(TEXT)
        .label_style((FONT, 15).into_font().color(&TEXT))
        .axis_desc_style((FONT, 17).into_font().color(&TEXT))
        .x_desc(x)
        .x_label_formatter(&whole_if_possible)
        .y_desc(y)
        .draw()?;
    Ok(())
}

fn legend<'a, 'b: 'a>(
    chart: &mut Chart<'a, 'b>,
    position: SeriesLabelPosition,
) -> Result<(), PlotError> {
    chart
        .configure_series_labels()
        .position(position)
        .margin(12)
        .legend_area_size(30)
        .background_style(WHITE.mix(0.9))
        .border_style(GRID)
        .label_font((FONT, 16).into_font().color(&TEXT))
        .draw()?;
    Ok(())
}

/// Draws into memory, then writes the file atomically.
fn draw(
    path: &Path,
    (width, height): (u32, u32),
    paint: impl FnOnce(&Figure<'_>) -> Result<(), PlotError>,
) -> Result<(), PlotError> {
    static FONT_REGISTERED: Once = Once::new();
    FONT_REGISTERED.call_once(|| {
        // A bundled font, because a server may have none.
        let font = epaint_default_fonts::UBUNTU_LIGHT;
        let _ = register_font(FONT, FontStyle::Normal, font);
    });
    let mut pixels = vec![0; 3 * width as usize * height as usize];
    {
        let figure = BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area();
        figure.fill(&WHITE)?;
        paint(&figure)?;
        figure.present()?;
    }
    let file = atomic::temporary_file_for(path)?;
    let mut encoder = png::Encoder::new(file.as_file(), width, height);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    writer.finish()?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::Metrics;

    fn records(steps: usize) -> Vec<StepRecord> {
        let variant = |step: usize, seconds: f64| VariantRecord {
            loss: 2.0 + 4.0 / step as f64,
            gradient_norm: 1.0,
            seconds: seconds + 0.1 * (step % 3) as f64,
            packs: 1,
            tokens: 100,
            visible_pairs: 1000,
            projected_rows: 10,
            predictions: 10,
            loss_scale: None,
            metrics: Metrics::from([("clip fraction".to_string(), 0.1)]),
            log_prob_seconds: None,
            predicted_seconds: None,
            reserved_bytes: None,
            flops: 1e9,
        };
        (1..=steps)
            .map(|step| StepRecord {
                step,
                epoch: 1,
                learning_rate: 1e-3,
                tree: Some(variant(step, 1.0)),
                flat: Some(variant(step, 4.2)),
                comparison: Some(ComparisonRecord {
                    relative_loss_deviation: 1e-7,
                    relative_gradient_deviation: 1e-7,
                    speedup: 4.0 + 0.1 * (step % 3) as f64,
                    token_bound: 5.3,
                    step_bound: 4.9 - 0.1 * (step % 2) as f64,
                }),
                validation_loss: (step % 5 == 0).then_some(2.5),
            })
            .collect()
    }

    /// Width and height in the header of a PNG.
    fn png_size(path: &Path) -> (u32, u32) {
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n");
        let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        (number(16), number(20))
    }

    #[test]
    fn pictures_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let (loss, faster) = (
            folder.path().join("loss.png"),
            folder.path().join("speedup.png"),
        );
        loss_curve(&loss, &records(12)).unwrap();
        speedup(&faster, &records(12)).unwrap();
        let panels = folder.path().join("metrics.png");
        metrics(&panels, &records(12), &["clip fraction", "none of these"]).unwrap();
        assert_eq!(png_size(&panels), (480, 320));
        assert_eq!(png_size(&loss), (1280, 520));
        assert_eq!(png_size(&faster), (900, 520));
    }

    #[test]
    fn without_steps_the_old_picture_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("loss.png");
        std::fs::write(&path, "old").unwrap();
        assert!(loss_curve(&path, &[]).is_err());
        assert!(speedup(&path, &[]).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

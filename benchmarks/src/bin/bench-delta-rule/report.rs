//! Printed tables.

use burn_tree_trainer::memory::format_bytes;
use burn_tree_trainer::report::{grouped, table, tera};
use tree_training_benchmarks::delta_rule::errors::Errors;
use tree_training_benchmarks::windows::WindowStats;

use crate::layers::MeasuredLayer;
use crate::parts::MeasuredPart;
use crate::rule::Measured;

/// One line about the gated delta rule, printed immediately.
pub fn line(one: &Measured) -> String {
    let relative = one.relative_to_path.map_or(String::new(), |[f, b]| {
        format!("; of one path's time {f:.2} and {b:.2}")
    });
    let errors = one.errors.map_or(String::new(), |errors| {
        format!(
            "; errors {:.1e} and {:.1e}",
            errors.output,
            errors.worst_gradient()
        )
    });
    format!(
        "{} {} {} {}: forward {:.3} ms ({}), backward {:.3} ms ({}){relative}{errors}",
        one.tree,
        one.heads,
        one.dtype,
        one.implementation,
        one.forward_seconds * 1e3,
        one.forward_repeated,
        one.backward_seconds * 1e3,
        one.backward_repeated,
    )
}

/// The table of the gated delta rule.
pub fn delta_rule(measured: &[Measured]) -> String {
    let rows = measured.iter().map(|one| {
        let error = |value: fn(&Errors) -> f64| match &one.errors {
            Some(errors) => format!("{:.1e}", value(errors)),
            None => "-".to_owned(),
        };
        let relative = |pass: usize| match one.relative_to_path {
            Some(relative) => format!("{:.2}", relative[pass]),
            None => "-".to_owned(),
        };
        vec![
            one.tree.clone(),
            one.heads.clone(),
            one.dtype.clone(),
            one.implementation.clone(),
            one.windows.tokens.to_string(),
            format!("{:.2}", one.windows.bundle_tiles),
            format!("{}/{}", one.windows.longest_chain, one.windows.windows),
            one.windows.levels.to_string(),
            format!("{:.3}", one.forward_seconds * 1e3),
            format!("{:.3}", one.backward_seconds * 1e3),
            relative(0),
            relative(1),
            tera(one.forward_flops_per_second),
            tera(one.backward_flops_per_second),
            one.bytes.map_or_else(|| "-".to_owned(), format_bytes),
            error(|errors| errors.output),
            error(|errors| errors.worst_output_row),
            error(|errors| errors.query),
            error(|errors| errors.key),
            error(|errors| errors.value),
            error(|errors| errors.log_decay),
            error(|errors| errors.beta),
            one.forward_repeated.to_string(),
            one.backward_repeated.to_string(),
        ]
    });
    let header = [
        "tree",
        "heads",
        "dtype",
        "implementation",
        "tokens",
        "padding",
        "chain/windows",
        "levels",
        "forward ms",
        "backward ms",
        "of a path",
        "backward",
        "TFLOP/s",
        "backward",
        "memory",
        "output error",
        "of the worst row",
        "dq",
        "dk",
        "dv",
        "dg",
        "dbeta",
        "forward again",
        "backward again",
    ];
    table(&header, rows.collect())
}

/// The table of the operations around it.
pub fn parts(measured: &[MeasuredPart]) -> String {
    let rows = measured.iter().map(|one| {
        let rate = |bytes: f64, seconds: f64| format!("{:.0}", bytes / seconds / 1e9);
        vec![
            one.operation.to_owned(),
            one.tree.clone(),
            one.dtype.clone(),
            one.rows.to_string(),
            format!("{:.3}", one.forward_seconds * 1e3),
            format!("{:.3}", one.backward_seconds * 1e3),
            rate(one.forward_bytes, one.forward_seconds),
            rate(one.backward_bytes, one.backward_seconds),
        ]
    });
    let header = [
        "operation",
        "tree",
        "dtype",
        "rows",
        "forward ms",
        "backward ms",
        "GB/s",
        "backward",
    ];
    table(&header, rows.collect())
}

/// One line about a layer.
pub fn layer_line(one: &MeasuredLayer) -> String {
    format!(
        "layer {} {}: {} of {} tokens; forward {:.2} ms on the tree, {:.2} flat; forward and \
         backward {:.2} and {:.2}: {:.2}x faster, bound {:.2}x",
        one.layer,
        one.dtype,
        one.tree_tokens,
        one.flat_tokens,
        one.tree_forward_seconds * 1e3,
        one.flat_forward_seconds * 1e3,
        one.tree_seconds * 1e3,
        one.flat_seconds * 1e3,
        one.flat_seconds / one.tree_seconds,
        one.flat_tokens as f64 / one.tree_tokens as f64,
    )
}

/// The table of windows per file.
pub fn windows(files: &[(String, WindowStats)]) -> String {
    let rows = files.iter().map(|(name, stats)| {
        vec![
            name.clone(),
            grouped(stats.tokens as u64),
            format!("{:.0}", stats.tokens as f64 / stats.nodes.max(1) as f64),
            format!("{:.2}", stats.node_windows),
            format!("{:.2}", stats.bundle_windows),
            format!("{:.2}", stats.node_tiles),
            format!("{:.2}", stats.bundle_tiles),
            stats.windows.to_string(),
            stats.longest_chain.to_string(),
            stats.levels.to_string(),
        ]
    });
    let header = [
        "runs",
        "tokens",
        "tokens a node",
        "nodes by 64",
        "windows by 64",
        "nodes by 16",
        "windows by 16",
        "windows",
        "longest chain",
        "levels",
    ];
    table(&header, rows.collect())
}

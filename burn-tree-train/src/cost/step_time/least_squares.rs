//! Least squares with non-negative coefficients.

/// The `x >= 0` that minimises `|rows * x - targets|`, exactly: the best of the unconstrained
/// solutions over all subsets of columns that are positive. (The optimum is such a solution for the
/// columns that it uses.) With the few kinds of work of a step, the 2^N subsets cost less than an
/// iteration that must converge.
pub(super) fn non_negative<const N: usize>(rows: &[[f64; N]], targets: &[f64]) -> [f64; N] {
    const { assert!(N < 16) };
    // Columns are scaled to length 1, so that one threshold detects linear dependence.
    let mut scale = [0.0; N];
    for row in rows {
        for (scale, value) in scale.iter_mut().zip(row) {
            *scale += value * value;
        }
    }
    let scale = scale.map(f64::sqrt);
    let mut gram = [[0.0; N]; N];
    let mut right = [0.0; N];
    for (row, target) in rows.iter().zip(targets) {
        for i in 0..N {
            if scale[i] > 0.0 {
                right[i] += row[i] / scale[i] * target;
                for j in (0..N).filter(|&j| scale[j] > 0.0) {
                    gram[i][j] += row[i] / scale[i] * (row[j] / scale[j]);
                }
            }
        }
    }

    let mut best = ([0.0; N], 0.0);
    for set in 1..1usize << N {
        let columns: Vec<usize> = (0..N).filter(|column| set >> column & 1 == 1).collect();
        let Some(solution) = solve(&gram, &right, &columns) else {
            continue;
        };
        if solution.iter().any(|&value| value < 0.0) {
            continue;
        }
        // |A x - b|^2 = |b|^2 - b^T A x where x solves the normal equations.
        let explained = columns.iter().zip(&solution);
        let explained = explained
            .map(|(&column, value)| right[column] * value)
            .sum();
        // Of equally good subsets, the first one, which has fewer columns of high number.
        if explained > best.1 * (1.0 + 1e-12) {
            let mut x = [0.0; N];
            for (&column, value) in columns.iter().zip(&solution) {
                x[column] = value / scale[column];
            }
            best = (x, explained);
        }
    }
    best.0
}

/// Solves the normal equations of a subset of columns by Cholesky decomposition. `None` if the
/// columns are linearly dependent.
fn solve<const N: usize>(
    gram: &[[f64; N]; N],
    right: &[f64; N],
    columns: &[usize],
) -> Option<Vec<f64>> {
    /// The share of a column's squared length that is not explained by the columns before it.
    const INDEPENDENT: f64 = 1e-9;
    let n = columns.len();
    let mut lower = [[0.0; N]; N];
    for i in 0..n {
        for j in 0..=i {
            let dot: f64 = (0..j).map(|k| lower[i][k] * lower[j][k]).sum();
            let rest = gram[columns[i]][columns[j]] - dot;
            lower[i][j] = if i == j {
                if rest < INDEPENDENT {
                    return None;
                }
                rest.sqrt()
            } else {
                rest / lower[j][j]
            };
        }
    }
    let mut x = vec![0.0; n];
    for i in 0..n {
        let dot: f64 = (0..i).map(|k| lower[i][k] * x[k]).sum();
        x[i] = (right[columns[i]] - dot) / lower[i][i];
    }
    for i in (0..n).rev() {
        let dot: f64 = (i + 1..n).map(|k| lower[k][i] * x[k]).sum();
        x[i] = (x[i] - dot) / lower[i][i];
    }
    Some(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn residual(rows: &[[f64; 4]], targets: &[f64], x: &[f64; 4]) -> f64 {
        let error = |row: &[f64; 4], target: &f64| {
            let product: f64 = row.iter().zip(x).map(|(a, b)| a * b).sum();
            (product - target).powi(2)
        };
        rows.iter()
            .zip(targets)
            .map(|(row, target)| error(row, target))
            .sum()
    }

    proptest! {
        /// The Karush-Kuhn-Tucker conditions: no coefficient can be changed within its bounds to
        /// reduce the error. For a convex problem the solution is then the minimum.
        #[test]
        fn no_better_solution_is_near(
            rows in prop::collection::vec(prop::array::uniform4(0.0..10.0f64), 1..12),
            targets in prop::collection::vec(-1.0..10.0f64, 12),
        ) {
            let targets = &targets[..rows.len()];
            let x = non_negative(&rows, targets);
            prop_assert!(x.iter().all(|&value| value >= 0.0));
            let least = residual(&rows, targets, &x);
            for column in 0..4 {
                for change in [1e-3, -1e-3] {
                    let mut other = x;
                    other[column] = (other[column] + change).max(0.0);
                    // Nearly dependent columns are left out, which costs up to `slack`.
                    let slack = 1e-6 * (1.0 + least);
                    prop_assert!(residual(&rows, targets, &other) >= least - slack);
                }
            }
        }
    }

    #[test]
    fn columns_that_are_the_same_share_nothing() {
        let rows = [[1.0, 2.0, 0.0, 0.0], [3.0, 6.0, 0.0, 0.0]];
        let x = non_negative(&rows, &[2.0, 6.0]);
        assert!((x[0] + 2.0 * x[1] - 2.0).abs() < 1e-12, "{x:?}");
        assert_eq!(x[2..], [0.0, 0.0]);
    }
}

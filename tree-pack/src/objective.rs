//! What an optimizer step minimises: how shared predictions count and how they are averaged.

/// How a prediction that several trajectories share counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// Every trajectory counts with its weight; occurrences of one `(row, target)` are merged
    /// into one whose weight is the sum (the paper's `lambda_t`). Exact only while the loss is
    /// linear in the log-probability, or all merged occurrences carry the same inputs.
    PerPath,
    /// Every original prediction stays an occurrence of its own.
    PerOccurrence,
    /// Every tree token that is a target in some trajectory counts once.
    Unique,
}

/// How the weighted sum over the predictions of an optimizer step is normalised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aggregation {
    /// `sum_r sum_t`
    Sum,
    /// `(1/R) sum_r sum_t`, the paper's sep-avg.
    SepAvg,
    /// `(1/R) sum_r mean_t`
    TrajectoryMean,
    /// `sum_r sum_t / number of trained occurrences`
    TokenMean,
    /// `sum_r w_r sum_t / sum_r w_r n_r`
    WeightedTokenMean,
    /// Mean over the tree tokens trained in some trajectory; only with [`Objective::Unique`].
    UniqueMean,
    /// Sum divided by a constant.
    Constant(f64),
}

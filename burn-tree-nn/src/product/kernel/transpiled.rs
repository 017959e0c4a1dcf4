//! Translates the kernels to CUDA C++, for devices that need not be there. If the environment
//! variable `BURN_TREE_NN_SOURCES` names a folder, the sources are written there, for
//! `nvcc -cubin -Xptxas -v` to tell registers and spills.

use burn_tree_kit::cube::translation::{BF16, F16, Target, assert_translate, buffer, settings};

use super::arguments::{ExchangeCompilationArg, ProblemCompilationArg, RightCompilationArg};
use super::matrix_product::MatrixProduct;
use super::results::DestinationsCompilationArg;
use super::*;
use crate::product::{Form, Joined};

fn kernel(
    Target { device, target }: Target,
    config: ProductConfig,
    operands: usize,
    dtype: ElemType,
) -> MatrixProduct {
    let right = || RightCompilationArg {
        operand: (),
        narrow: (),
        end: (),
    };
    let (left, results) = match config.joined {
        Joined::Sum => (operands, 1),
        Joined::Columns => (1, operands),
    };
    let exchange = || ExchangeCompilationArg {
        parts: buffer(),
        flags: buffer(),
    };
    let (rounded, wide) = match config.output {
        Output::Rounded => (results, 0),
        Output::Wide => (0, 1),
    };
    let destinations = DestinationsCompilationArg {
        rounded: (0..rounded).map(|_| ()).collect(),
        wide: (0..wide).map(|_| buffer()).collect(),
        ends: (0..rounded).map(|_| ()).collect(),
    };
    let problem = ProblemCompilationArg {
        rows: (),
        columns: (),
        row_tiles: (),
        column_tiles: (),
        steps: (),
        divided: (),
    };
    let exchanges = (config.ending == Ending::Split) as usize;
    MatrixProduct::new(
        settings(UNITS),
        device,
        target,
        (0..left).map(|_| ()).collect(),
        (0..operands).map(|_| right()).collect(),
        destinations,
        (0..exchanges).map(|_| exchange()).collect(),
        problem,
        config,
        dtype,
    )
}

/// Forms with the number of operands that are joined.
const JOINED: [(Form, Joined, usize); 5] = [
    (Form::Plain, Joined::Sum, 1),
    (Form::Plain, Joined::Columns, 3),
    (Form::RightTransposed, Joined::Sum, 3),
    (Form::LeftTransposed, Joined::Sum, 1),
    (Form::LeftTransposed, Joined::Columns, 3),
];

#[test]
fn every_variant_translates() {
    let mut cases = Vec::new();
    for (form, joined, operands) in JOINED {
        for output in [Output::Rounded, Output::Wide] {
            if output == Output::Wide && joined == Joined::Columns {
                continue;
            }
            for ending in [Ending::Whole, Ending::Narrow, Ending::Split] {
                let narrow = output == Output::Rounded && form.left() == Major::Summed;
                if ending == Ending::Narrow && !narrow {
                    continue;
                }
                for dtype in [BF16, F16] {
                    let config = ProductConfig {
                        form,
                        joined,
                        output,
                        ending,
                    };
                    let name = format!("product_{form:?}_{joined:?}_{output:?}_{ending:?}_{dtype}");
                    let kernel = kernel(Target::hopper(), config, operands, dtype);
                    cases.push((name, Box::new(kernel) as Box<dyn CubeKernel>, "wgmma"));
                }
            }
        }
    }
    let folder = std::env::var_os("BURN_TREE_NN_SOURCES").map(Into::into);
    assert_translate(cases, folder);
}

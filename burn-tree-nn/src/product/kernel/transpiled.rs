//! Translates the kernels to CUDA C++, for devices that need not be there. If the environment
//! variable `BURN_TREE_NN_SOURCES` names a folder, the sources are written there, for
//! `nvcc -cubin -Xptxas -v` to tell registers and spills.

use burn_tree_kit::cube::translation::{BF16, F16, Target, assert_translate, buffer, settings};

use super::arguments::{ExchangeCompilationArg, ProblemCompilationArg, TermCompilationArg};
use super::matrix_product::MatrixProduct;
use super::*;
use crate::product::Form;

fn kernel(
    Target { device, target }: Target,
    config: ProductConfig,
    terms: usize,
    dtype: ElemType,
) -> MatrixProduct {
    let term = || TermCompilationArg {
        left: (),
        right: (),
        narrow_right: (),
        end_step: (),
    };
    let exchange = || ExchangeCompilationArg {
        parts: buffer(),
        flags: buffer(),
    };
    let problem = ProblemCompilationArg {
        rows: (),
        columns: (),
        row_tiles: (),
        column_tiles: (),
        steps: (),
        divided: (),
    };
    let count = |is_given: bool| 0..is_given as usize;
    MatrixProduct::new(
        settings(UNITS),
        device,
        target,
        (0..terms).map(|_| term()).collect(),
        count(config.output == Output::Rounded)
            .map(|_| ())
            .collect(),
        count(config.output == Output::Wide)
            .map(|_| buffer())
            .collect(),
        count(config.ending == Ending::Split)
            .map(|_| exchange())
            .collect(),
        problem,
        config,
        dtype,
    )
}

#[test]
fn every_variant_translates() {
    let mut cases = Vec::new();
    for form in [Form::Plain, Form::RightTransposed, Form::LeftTransposed] {
        for output in [Output::Rounded, Output::Wide] {
            for ending in [Ending::Whole, Ending::Narrow, Ending::Split] {
                let narrow = output == Output::Rounded && form.left() == Major::Summed;
                if ending == Ending::Narrow && !narrow {
                    continue;
                }
                for (terms, dtype) in [(1, BF16), (3, BF16), (1, F16)] {
                    let config = ProductConfig {
                        form,
                        output,
                        ending,
                    };
                    let name = format!("product_{form:?}_{output:?}_{ending:?}_{terms}_{dtype}");
                    let kernel = kernel(Target::hopper(), config, terms, dtype);
                    cases.push((name, Box::new(kernel) as Box<dyn CubeKernel>, "wgmma"));
                }
            }
        }
    }
    let folder = std::env::var_os("BURN_TREE_NN_SOURCES").map(Into::into);
    assert_translate(cases, folder);
}

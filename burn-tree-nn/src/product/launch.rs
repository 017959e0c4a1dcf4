//! Which products the kernel takes, and its launch.

use std::sync::{Mutex, PoisonError};

use burn::tensor::DType;
use burn_cubecl::{CubeDevice, kernel::into_contiguous, tensor::CubeTensor};
use burn_tree_kit::cube::matrix::operand;
use burn_tree_kit::cube::warpgroup::{Major, WARPGROUP, panel_map};
use burn_tree_kit::cube::{elem, empty, zeros};
use burn_tree_kit::implementation::Unavailable;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::kernel::{
    DestinationsLaunch, ExchangeLaunch, Output, ProblemLaunch, ProductConfig, RightLaunch, UNITS,
    matrix_product,
};
use super::plan::{Ending, STEP, TILE_COLUMNS, TILE_ROWS, Tiles};
use super::{Joined, Products};

/// Rows start at multiples of as many numbers: 16 bytes.
const ALIGNMENT: usize = 8;
/// Columns of a narrow tile, and rows or columns of other boxes.
const PANEL: usize = 64;

impl Products {
    /// Each left operand with its right operand.
    fn pairs(&self) -> impl Iterator<Item = (&CubeTensor, &CubeTensor)> {
        self.left.iter().cycle().zip(&self.right)
    }

    /// # Errors
    /// If the kernel does not run on the device of the tensors, or does not take the tensors.
    pub(super) fn check(&self) -> Result<(), Unavailable> {
        let properties = self.left[0].client.properties();
        if properties.identity.fingerprint != "ptx_sm90" {
            return Err(Unavailable("the compute capability is not 9.0".into()));
        }
        let dtype = self.left[0].dtype;
        if operand(dtype).is_none() || ![dtype, DType::F32].contains(&self.dtype) {
            return Err(Unavailable(format!(
                "{dtype:?} tensors; f16 or bf16 are needed"
            )));
        }
        let first = self.form.sizes(&self.left[0], &self.right[0]);
        for (left, right) in self.pairs() {
            let [rows, columns, summed] = self.form.sizes(left, right);
            let fits = match self.joined {
                Joined::Sum => [rows, columns] == first[..2],
                Joined::Columns => [rows, summed] == [first[0], first[2]],
            };
            if [left.dtype, right.dtype] != [dtype; 2] || !fits {
                return Err(Unavailable("products of different shapes or dtypes".into()));
            }
            if !columns.is_multiple_of(ALIGNMENT) {
                return Err(width_unavailable(columns));
            }
            check_size(left)?;
            check_size(right)?;
        }
        Ok(())
    }

    /// `[M, N, S]` of each product.
    fn sizes(&self) -> Vec<[usize; 3]> {
        self.pairs()
            .map(|(left, right)| self.form.sizes(left, right))
            .collect()
    }

    fn output(&self) -> Output {
        match self.dtype == self.left[0].dtype {
            true => Output::Rounded,
            false => Output::Wide,
        }
    }

    /// The tiles, and where each product ends: among the steps of a sum, or among the column tiles.
    fn tiles(&self, sizes: &[[usize; 3]]) -> (Tiles, Vec<usize>) {
        let [rows, columns, summed] = sizes[0];
        let mut end = 0;
        let ends = sizes.iter().map(|&[_, columns, summed]| {
            end += match self.joined {
                Joined::Sum => summed.div_ceil(STEP),
                Joined::Columns => columns.div_ceil(TILE_COLUMNS),
            };
            end
        });
        let ends: Vec<usize> = ends.collect();
        let (columns, steps) = match self.joined {
            Joined::Sum => (columns.div_ceil(TILE_COLUMNS), end),
            Joined::Columns => (end, summed.div_ceil(STEP)),
        };
        let tiles = Tiles {
            rows: rows.div_ceil(TILE_ROWS),
            columns,
            steps,
        };
        (tiles, ends)
    }

    /// Whether the kernel can divide tiles into narrow ones.
    fn takes_narrow_tiles(&self, ends: &[usize]) -> bool {
        // A stage of a narrow tile holds two steps of one product.
        let whole_pairs = match self.joined {
            Joined::Sum => ends.len() == 1 || ends.iter().all(|end| end.is_multiple_of(2)),
            Joined::Columns => true,
        };
        self.output() == Output::Rounded && self.form.left() == Major::Summed && whole_pairs
    }

    /// Memory for the results: one, or one for each right operand.
    fn results(&self, sizes: &[[usize; 3]]) -> Vec<CubeTensor> {
        let results = match self.joined {
            Joined::Sum => 1,
            Joined::Columns => sizes.len(),
        };
        let near = &self.left[0];
        let result = |&[rows, columns, _]: &[usize; 3]| empty(near, [rows, columns], self.dtype);
        sizes.iter().take(results).map(result).collect()
    }

    /// Runs the kernel. Returns one result, or one for each right operand.
    pub(crate) fn launch(self) -> Vec<CubeTensor> {
        let near = self.left[0].clone();
        let element = elem(near.dtype);
        let hardware = &near.client.properties().hardware;
        let cubes = hardware.num_streaming_multiprocessors.unwrap_or(1) as usize;
        let sizes = self.sizes();
        let (tiles, ends) = self.tiles(&sizes);
        let (ending, divided) = tiles.ending(cubes, self.takes_narrow_tiles(&ends));
        let launched = match ending {
            Ending::Whole => cubes.min(tiles.count()),
            Ending::Narrow | Ending::Split => cubes,
        };
        let config = ProductConfig {
            form: self.form,
            joined: self.joined,
            output: self.output(),
            ending,
        };
        let results = self.results(&sizes);
        let exchange = (ending == Ending::Split).then(|| exchange_memory(&near, launched));
        let [rows, columns, _] = sizes[0];
        let problem = ProblemLaunch::new(
            rows as u32,
            columns as u32,
            tiles.rows as u32,
            tiles.columns as u32,
            tiles.steps as u32,
            divided as u32,
        );
        let left_rows = box_rows(self.form.left(), TILE_ROWS);
        let left = self.left.into_iter();
        let left = left.map(|left| panel_map(&readable(left), left_rows, element));
        let right_rows = box_rows(self.form.right(), TILE_COLUMNS);
        let right = self.right.into_iter().zip(&ends).map(|(right, &end)| {
            let right = readable(right);
            let narrow = panel_map(&right, PANEL, element);
            RightLaunch::new(panel_map(&right, right_rows, element), narrow, end as u32)
        });
        // SAFETY: copies clip to the maps' tensors; other stores compare with the sizes of the
        // result. Every cube of `Ending::Split` has a part and two flags.
        unsafe {
            matrix_product::launch_unchecked(
                &near.client,
                CubeCount::Static(launched as u32, 1, 1),
                CubeDim::new_1d(UNITS as u32),
                left.collect(),
                right.collect(),
                destinations(&results, config.output, &ends, element),
                exchange.into_iter().collect(),
                problem,
                config,
                element,
            );
        }
        results
    }
}

/// Rows of the boxes of an operand of which a tile has `of_result` rows or columns.
fn box_rows(major: Major, of_result: usize) -> usize {
    match major {
        Major::Summed => of_result,
        Major::Kept => STEP,
    }
}

fn destinations<E: Float>(
    results: &[CubeTensor],
    output: Output,
    ends: &[usize],
    element: ElemType,
) -> DestinationsLaunch<E> {
    let mut rounded = SequenceArg::new();
    let mut wide = SequenceArg::new();
    let mut end_tiles = SequenceArg::new();
    for (result, &end) in results.iter().zip(ends) {
        match output {
            Output::Rounded => {
                rounded.push(panel_map(result, PANEL, element));
                end_tiles.push(end as u32);
            }
            Output::Wide => wide.push(result.clone().into_buffer_arg()),
        }
    }
    DestinationsLaunch::new(rounded, wide, end_tiles)
}

/// Refuses sizes that the kernel's 32-bit coordinates and 16-byte copies do not take.
fn check_size(tensor: &CubeTensor) -> Result<(), Unavailable> {
    let shape = tensor.meta.shape();
    let (rows, columns) = (shape[0], shape[1]);
    // Boxes begin up to a tile beyond the end.
    if rows.max(columns) > i32::MAX as usize - TILE_COLUMNS {
        return Err(Unavailable(format!("a tensor of shape {shape:?}")));
    }
    if !columns.is_multiple_of(ALIGNMENT) {
        return Err(width_unavailable(columns));
    }
    if !starts_aligned(tensor) && tensor.is_contiguous() {
        return Err(Unavailable(
            "memory that does not start at a multiple of 16 bytes".into(),
        ));
    }
    Ok(())
}

fn width_unavailable(columns: usize) -> Unavailable {
    Unavailable(format!(
        "rows of {columns} numbers; a multiple of {ALIGNMENT} is needed"
    ))
}

fn starts_aligned(tensor: &CubeTensor) -> bool {
    let offset = tensor.handle.offset_start.unwrap_or(0) as usize;
    offset.is_multiple_of(ALIGNMENT * tensor.dtype.size())
}

/// The tensor if copies can read its rows, else a contiguous copy.
fn readable(tensor: CubeTensor) -> CubeTensor {
    let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
    let by_rows = strides[1] == 1 && strides[0] >= shape[1];
    let aligned = strides[0].is_multiple_of(ALIGNMENT) && starts_aligned(&tensor);
    if by_rows && aligned && !tensor.meta.is_tiled() {
        return tensor;
    }
    let tensor = into_contiguous(tensor);
    // The strides of dimensions of size 1 may be anything.
    let shape = tensor.meta.shape().clone();
    CubeTensor::new_contiguous(
        tensor.client,
        tensor.device,
        shape,
        tensor.handle,
        tensor.dtype,
    )
}

/// Flags of each device and stream; all are 0 between two launches.
static FLAGS: Mutex<Vec<(CubeDevice, u64, CubeTensor)>> = Mutex::new(Vec::new());

/// Memory for the parts and flags of `cubes` cubes, each with two warpgroups.
fn exchange_memory(near: &CubeTensor, cubes: usize) -> ExchangeLaunch {
    let sums = TILE_ROWS / 2 * TILE_COLUMNS;
    debug_assert_eq!(sums % WARPGROUP, 0);
    let parts = empty(near, [cubes, 2, sums], DType::F32);
    // The stream of new memory is that of the launch.
    let flags = flags(near, parts.handle.stream.value, cubes);
    ExchangeLaunch::new(parts.into_buffer_arg(), flags.into_buffer_arg())
}

/// The flags for launches on a stream. They run one after the other, and each resets the flags that
/// it has set.
fn flags(near: &CubeTensor, stream: u64, cubes: usize) -> CubeTensor {
    let mut entries = FLAGS.lock().unwrap_or_else(PoisonError::into_inner);
    let entry = entries
        .iter()
        .find(|(device, of, _)| *device == near.device && *of == stream);
    if let Some((_, _, flags)) = entry {
        return flags.clone();
    }
    let flags = zeros(near, [cubes, 2], DType::U32);
    entries.push((near.device.clone(), stream, flags.clone()));
    flags
}

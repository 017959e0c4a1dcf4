//! Products of a warpgroup, four planes, with both operands in shared memory (`wgmma`, compute
//! capability 9.0).
//!
//! An operand is made of panels of 64 columns with the 128-byte swizzle: row follows row at 128
//! bytes, and the eight 16-byte chunks of row `r` are permuted, chunk `c` at `c ^ (r % 8)`. Panels
//! start at multiples of 1024 bytes.

use cubecl::prelude::*;

use crate::cube::matrix::{pack, ptx_type, read};

/// Columns of a panel: as many 16-bit numbers as the 128-byte swizzle permutes.
pub const PANEL_COLUMNS: usize = 64;
/// Bytes of a row of a panel.
pub const PANEL_ROW_BYTES: usize = 2 * PANEL_COLUMNS;
/// Units of a warpgroup.
pub const WARPGROUP: usize = 128;
/// Depth of one instruction.
const DEPTH: usize = 16;

/// Which dimension of an operand is contiguous in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Major {
    /// The summed one: panels have 64 summed numbers a row.
    Summed,
    /// The other one, that of the result: panels have 64 rows or columns of the result a row.
    Kept,
}

/// An operand in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// Its contiguous dimension.
    pub major: Major,
    /// Bytes from a panel to the next one along the summed dimension; only for sums over more than
    /// one panel.
    pub panel_bytes: usize,
}

impl Operand {
    /// What to add to the descriptor, in units of 16 bytes, for instruction number `index`.
    fn offset(self, index: usize) -> usize {
        let instructions = PANEL_COLUMNS / DEPTH;
        let step = match self.major {
            Major::Summed => 2 * DEPTH,
            Major::Kept => DEPTH * PANEL_ROW_BYTES,
        };
        (index / instructions * self.panel_bytes + index % instructions * step) / 16
    }
}

/// A product of two operands in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TileProduct {
    /// 64 rows.
    pub left: Operand,
    /// As many columns as twice the sums of a unit.
    pub right: Operand,
    /// Length of the sums, a multiple of 16.
    pub depth: usize,
}

/// Descriptor of the operand at `address`: 8 rows of a panel are 1024 bytes apart, and the panels of
/// an operand with [`Major::Kept`] along its rows or columns are `panel_bytes` apart.
#[cube]
pub fn describe(address: u32, #[comptime] panel_bytes: usize) -> u64 {
    let layout = comptime!((panel_bytes as u64 / 16) << 16 | (64u64 << 32) | (1u64 << 62));
    u64::cast_from(address / 16) | layout
}

/// `left * right`, plus `sum` unless `accumulate` is 0: `N` numbers a unit. Unit `u` of the
/// warpgroup holds rows `u / 32 * 16 + u % 32 / 4` and 8 further down, in blocks of 8 columns: number
/// `4 b + 2 h + i` is that of column `8 b + u % 4 * 2 + i` in the first (`h` = 0) or second row.
#[cube]
pub fn multiply_add_tiles<E: Float, N: Size>(
    left: u64,
    right: u64,
    sum: Vector<f32, N>,
    accumulate: u32,
    #[comptime] product: TileProduct,
) -> Vector<f32, N> {
    let element = ptx_type::<E>().comptime();
    let numbers = N::value();
    let text = comptime!(product_text(element, product, numbers));
    let result: Vector<f32, N>;
    gpu_asm!(
        "{text} /* {result} {sum} {left} {right} {accumulate} */",
        sum = in(_) read::<Vector<f32, N>>(sum), left = in(_) read::<u64>(left),
        right = in(_) read::<u64>(right), accumulate = in(_) read::<u32>(accumulate),
        result = out(_) result,
    );
    result
}

/// Operands: `$0` result, `$1` sum, `$2` left and `$3` right descriptor, `$4` whether to add the sum.
fn product_text(element: &str, product: TileProduct, numbers: usize) -> String {
    let mut text =
        String::from("{ .reg .b64 left, right; .reg .pred add; setp.ne.u32 add, $4, 0; ");
    for number in 0..numbers {
        text += &format!("mov.f32 %{number}, %{}; ", numbers + number);
    }
    text += "wgmma.fence.sync.aligned; ";
    let kept = |operand: Operand| (operand.major == Major::Kept) as usize;
    for index in 0..product.depth / DEPTH {
        if index == 1 {
            text += "setp.eq.u32 add, 0, 0; ";
        }
        text += &format!(
            "add.s64 left, $2, {}; add.s64 right, $3, {}; \
             wgmma.mma_async.sync.aligned.m64n{}k16.f32.{element}.{element} \
             $0, left, right, add, 1, 1, {}, {}; ",
            product.left.offset(index),
            product.right.offset(index),
            2 * numbers,
            kept(product.left),
            kept(product.right),
        );
    }
    text + "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; }"
}

/// Writes 64 columns of the sums of a warpgroup, from column `first` on, rounded to `E`, to the panel
/// of 64 rows at `panel` in shared memory (`stmatrix`).
#[cube]
pub fn store_panel<E: Float, N: Size>(sums: Vector<f32, N>, panel: u32, #[comptime] first: usize) {
    let lane = UNIT_POS_X % 32;
    let row = UNIT_POS_X % WARPGROUP as u32 / 32 * 16 + lane % 16;
    let chunk = (lane / 16) ^ (lane % 8);
    let spot = row * PANEL_ROW_BYTES as u32 + chunk * 16;
    #[unroll]
    for quarter in 0..4usize {
        // Two blocks of 8 columns, each with 4 numbers a unit.
        let at = comptime!(first / 2 + 8 * quarter);
        let first = pack::<E>(sums.extract(at), sums.extract(comptime!(at + 1)));
        let second = pack::<E>(
            sums.extract(comptime!(at + 2)),
            sums.extract(comptime!(at + 3)),
        );
        let third = pack::<E>(
            sums.extract(comptime!(at + 4)),
            sums.extract(comptime!(at + 5)),
        );
        let fourth = pack::<E>(
            sums.extract(comptime!(at + 6)),
            sums.extract(comptime!(at + 7)),
        );
        let address = panel + (spot ^ comptime!(32 * quarter as u32));
        store_matrices(address, first, second, third, fourth);
    }
}

/// Writes four 8 x 8 matrices of 16-bit numbers, two a word, to shared memory (`stmatrix`): lane `l`
/// gives the address of row `l % 8` of matrix `l / 8`.
#[cube]
fn store_matrices(address: u32, first: u32, second: u32, third: u32, fourth: u32) {
    gpu_asm!(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [{address}], {{{first}, {second}, {third}, {fourth}}};",
        address = in(_) read::<u32>(address), first = in(_) read::<u32>(first),
        second = in(_) read::<u32>(second), third = in(_) read::<u32>(third),
        fourth = in(_) read::<u32>(fourth),
    );
}

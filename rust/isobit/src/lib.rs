// SPDX-License-Identifier: Apache-2.0
//! Integer GRUs, low-bit linear layers and activation tables with the same bits on every machine: the safe interface of
//! isobit, over libisobit.so. Arithmetic: `docs/numerics.md` of isobit.
//!
//! Letters in shapes: T steps, N sequences, C inputs, H hidden units, L layers, D directions of a GRU; a linear layer
//! has M rows of x, N rows (outputs) and K columns (inputs) of weights; images are `[B, H, W, C]`, their results `[B, P,
//! Q, O]`, kernels R x S. Every size is checked, and an [`Error`] names
//! the argument, the value and the limit.
//!
//! Models, tables, weights and layers never change, so they are `Send` and `Sync`. States and workspaces change in a
//! call, which takes them as `&mut`: they are `Send`. So is a [`Pool`], which runs one call at a time and is not
//! `Sync`.
#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

mod arrays;
mod conv;
mod device;
mod element;
mod error;
mod export;
mod gru;
mod handle;
mod linear;
mod low_bit;
mod pool;
mod table;

pub use arrays::Arrays;
pub use conv::{
    Conv, ConvAxis, ConvShape, ImageSize, PoolKind, StaticConv, StaticConvState, StaticConvStream, StaticPool,
    StaticPoolOptions,
};
pub use device::{DeviceConv, DeviceLinear, DeviceRun, DeviceStaticConv};
pub use element::{Bf16, Element, F16};
pub use error::{Error, Result, StatusCode};
pub use export::{export_c, ExportInfo, ExportOptions, Target};
pub use gru::{Gru, GruInfo, GruRun, GruState, GruWorkspace};
pub use linear::{
    Activations, Linear, LinearOptions, LinearRun, LinearWorkspace, Rounding, StaticLinear, StaticLinearOptions,
};
pub use low_bit::{BitWidth, Kind, LowBitInfo, LowBitMatrix, LowBitOptions, Method, ScaleType};
pub use pool::{CpuPath, Grid, Pool, Scale};
pub use table::{Certificate, Table, TableModel};

// `cargo test` compiles the Rust of that page.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
struct PageOfTheDocumentation;

/// Version of the library that runs.
pub fn version() -> &'static str {
    // SAFETY: a literal of the library, which stays loaded.
    unsafe { handle::text(isobit_sys::isobit_version()) }
}

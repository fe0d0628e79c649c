// SPDX-License-Identifier: Apache-2.0
use std::path::Path;
use std::ptr;

use isobit_sys as sys;

use crate::element::{check_dtype, Element};
use crate::error::{check, Error, Result};
use crate::handle::{c_path, c_text, count, handle, sized, text};
use crate::low_bit::LowBitMatrix;
use crate::pool::{self, CpuPath, Grid, Pool};

handle!(LinearHandle, isobit_linear, isobit_linear_destroy);
handle!(StaticLinearHandle, isobit_static_linear, isobit_static_linear_destroy);
handle!(WorkspaceHandle, isobit_linear_workspace, isobit_linear_workspace_destroy);

/// What happens to x before the product. The groups of a [`Conv`](crate::Conv) are blocks of channels of a pixel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Activations {
    /// Nothing; the order of the sums is the kernel's own.
    #[default]
    Float = sys::ISOBIT_ACTIVATIONS_FLOAT,
    /// 8-bit codes of each group, symmetric; the same bytes on every machine.
    Int8 = sys::ISOBIT_ACTIVATIONS_INT8,
    /// The same with an offset for each group.
    Int8Asymmetric = sys::ISOBIT_ACTIVATIONS_INT8_ASYMMETRIC,
    /// [`Conv`](crate::Conv) only: 8-bit codes with one symmetric scale for each image.
    Int8PerImage = sys::ISOBIT_ACTIVATIONS_INT8_PER_IMAGE,
}

impl Activations {
    pub(crate) fn from_number(number: i32) -> Activations {
        [Activations::Int8, Activations::Int8Asymmetric, Activations::Int8PerImage]
            .into_iter()
            .find(|activations| *activations as i32 == number)
            .unwrap_or_default()
    }
}

/// How integers are rounded after a shift.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Rounding {
    /// Ties to even.
    #[default]
    NearestEven = sys::ISOBIT_NEAREST_EVEN,
    /// floor(v + 1/2).
    NearestUp = sys::ISOBIT_NEAREST_UP,
    /// Ties away from zero.
    NearestAway = sys::ISOBIT_NEAREST_AWAY,
    /// floor(v).
    Floor = sys::ISOBIT_FLOOR,
}

/// Options of a [`Linear`] or a [`Conv`](crate::Conv); `Default` is none of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinearOptions<'a> {
    /// What happens to x.
    pub activations: Activations,
    /// Instruction set.
    pub path: CpuPath,
    /// `[N]`, or `[O]`.
    pub bias: Option<&'a [f32]>,
    /// lo <= hi: results below lo become lo, above hi hi.
    pub clamp: Option<(f32, f32)>,
}

impl LinearOptions<'_> {
    /// It holds the bias as a pointer.
    pub(crate) fn to_c(self) -> Result<sys::isobit_linear_options> {
        let mut c = sized!(isobit_linear_options);
        c.activations = self.activations as i32;
        c.cpu_path = self.path as i32;
        if let Some((lo, hi)) = self.clamp {
            c.has_clamp = 1;
            c.clamp_lo = lo;
            c.clamp_hi = hi;
        }
        if let Some(bias) = self.bias {
            c.bias = checked_bias(bias)?.as_ptr();
            c.bias_count = count(bias);
        }
        Ok(c)
    }
}

/// Options of a call; `Default` is none of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinearRun<'a> {
    /// Int8: x is not searched for NaN and infinity; what is computed of them is NaN.
    pub unchecked: bool,
    /// Elements from row to row, or pixel to pixel, of x, at least those of one; 0: as many.
    pub x_stride: i64,
    /// The same of y.
    pub y_stride: i64,
    /// None: the caller's thread.
    pub pool: Option<&'a Pool>,
}

impl LinearRun<'_> {
    pub(crate) fn to_c(self) -> sys::isobit_linear_run_options {
        let mut c = sized!(isobit_linear_run_options);
        c.unchecked = self.unchecked as i32;
        c.x_stride = self.x_stride;
        c.y_stride = self.y_stride;
        c.pool = pool::raw(self.pool);
        c
    }
}

/// A bias; C takes a size of 0 for None.
fn checked_bias(bias: &[f32]) -> Result<&[f32]> {
    if bias.is_empty() {
        return Err(Error::invalid("bias is empty, must be None or have N elements".to_string()));
    }
    Ok(bias)
}

/// A layer `y = act(x W^T + bias)` with floating-point rows in and out.
#[derive(Debug)]
pub struct Linear(LinearHandle);

// SAFETY: a layer never changes, and the library ties it to no thread.
unsafe impl Send for Linear {}
// SAFETY: as above.
unsafe impl Sync for Linear {}

/// Scratch memory of calls, of any layer that needs no more of it than was asked for.
#[derive(Debug)]
pub struct LinearWorkspace(WorkspaceHandle);

// SAFETY: the library ties a workspace to no thread; calls take it as &mut.
unsafe impl Send for LinearWorkspace {}

impl LinearWorkspace {
    /// `make` calls the function that makes the handle.
    pub(crate) fn new(make: impl FnOnce(*mut *mut sys::isobit_linear_workspace) -> i32) -> Result<LinearWorkspace> {
        WorkspaceHandle::new(make).map(LinearWorkspace)
    }

    pub(crate) fn get(&mut self) -> *mut sys::isobit_linear_workspace {
        self.0.get()
    }

    /// Its bytes.
    pub fn size_bytes(&self) -> i64 {
        // SAFETY: a handle that lives.
        unsafe { sys::isobit_linear_workspace_size_bytes(self.0.get()) }
    }
}

impl Linear {
    /// Packs the weights; the matrix is not needed afterwards.
    pub fn new(matrix: &LowBitMatrix, options: &LinearOptions) -> Result<Linear> {
        let c = options.to_c()?;
        // SAFETY: a handle, a structure and a slice that live, and where the new handle goes.
        LinearHandle::new(|out| unsafe { sys::isobit_linear_create(matrix.handle.get(), &c, out) }).map(Linear)
    }

    fn info(&self) -> sys::isobit_linear_info {
        let mut c = sized!(isobit_linear_info);
        // SAFETY: handle and structure live.
        check(unsafe { sys::isobit_linear_get_info(self.0.get(), &mut c) }).expect("handle and structure are valid");
        c
    }

    /// N.
    pub fn rows(&self) -> i64 {
        self.info().rows
    }

    /// K.
    pub fn columns(&self) -> i64 {
        self.info().columns
    }

    /// The instruction set that it was packed for.
    pub fn path(&self) -> CpuPath {
        CpuPath::from_number(self.info().cpu_path)
    }

    /// Bytes of the packed weights with what else a call reads.
    pub fn size_bytes(&self) -> i64 {
        self.info().size_bytes
    }

    /// The kernel that it runs.
    pub fn kernel(&self) -> &'static str {
        // SAFETY: a literal of the library, which stays loaded.
        unsafe { text(sys::isobit_linear_kernel(self.0.get())) }
    }

    /// Memory for calls with up to `m` rows on up to `threads` threads, 1..=1024.
    pub fn workspace(&self, m: i64, threads: i32) -> Result<LinearWorkspace> {
        // SAFETY: a handle that lives, and where the new one goes.
        WorkspaceHandle::new(|out| unsafe { sys::isobit_linear_workspace_create(self.0.get(), m, threads, out) })
            .map(LinearWorkspace)
    }

    /// `m` rows of x to rows of y. Types: Float: f32, F16 or Bf16, the same of x and y; Int8: x also f64, any pair. A
    /// row that is not finite is refused by its index (Int8); nothing is written then.
    pub fn forward<X: Element, Y: Element>(
        &self,
        x: &[X],
        y: &mut [Y],
        m: i64,
        workspace: &mut LinearWorkspace,
        run: &LinearRun,
    ) -> Result<()> {
        let options = run.to_c();
        // SAFETY: handles, slices with types and lengths, and a structure that live; &mut says that nobody else uses
        // them.
        check(unsafe {
            sys::isobit_linear_forward(
                self.0.get(),
                x.as_ptr().cast(),
                X::DTYPE,
                count(x),
                y.as_mut_ptr().cast(),
                Y::DTYPE,
                count(y),
                m,
                workspace.0.get(),
                &options,
            )
        })
    }
}

/// Options of a [`StaticLinear`] or a [`StaticConv`](crate::StaticConv).
#[derive(Clone, Copy, Debug)]
pub struct StaticLinearOptions<'a> {
    /// Instruction set.
    pub path: CpuPath,
    /// Of x: 2 to 16 bits.
    pub input: Grid,
    /// Of y: 2 to 16 bits; None: y is the accumulators, i32.
    pub output: Option<Grid>,
    /// `[N]`, finite.
    pub bias: Option<&'a [f32]>,
    /// In real numbers; needs an output grid.
    pub clamp: Option<(f32, f32)>,
    /// Of the rescale to y.
    pub rounding: Rounding,
}

impl StaticLinearOptions<'_> {
    /// It holds the bias as a pointer.
    pub(crate) fn to_c(self) -> Result<sys::isobit_static_linear_options> {
        let mut c = sized!(isobit_static_linear_options);
        c.cpu_path = self.path as i32;
        c.input = self.input.to_c();
        if let Some(output) = self.output {
            c.has_output = 1;
            c.output = output.to_c();
        }
        if let Some((lo, hi)) = self.clamp {
            c.has_clamp = 1;
            c.clamp_lo = lo;
            c.clamp_hi = hi;
        }
        c.rounding = self.rounding as i32;
        if let Some(bias) = self.bias {
            c.bias = checked_bias(bias)?.as_ptr();
            c.bias_count = count(bias);
        }
        Ok(c)
    }
}

/// A layer of codes of 2 to 16 bits on fixed grids, integers only.
#[derive(Debug)]
pub struct StaticLinear {
    pub(crate) handle: StaticLinearHandle,
    info: sys::isobit_static_linear_info,
}

// SAFETY: a layer never changes, and the library ties it to no thread.
unsafe impl Send for StaticLinear {}
// SAFETY: as above.
unsafe impl Sync for StaticLinear {}

impl StaticLinear {
    /// `matrix`: 1, 2, 4 or 8 bits, symmetric, one group a row.
    pub fn new(matrix: &LowBitMatrix, options: &StaticLinearOptions) -> Result<StaticLinear> {
        let c = options.to_c()?;
        // SAFETY: a handle, a structure and a slice that live, and where the new handle goes.
        let handle =
            StaticLinearHandle::new(|out| unsafe { sys::isobit_static_linear_create(matrix.handle.get(), &c, out) })?;
        StaticLinear::with_info(handle)
    }

    /// A layer that `StaticLinearLayer::save` of C++ wrote. `name`: which layer of a file with several. Every field is
    /// checked and the overflow proof made anew.
    pub fn load(path: impl AsRef<Path>, name: Option<&str>, cpu_path: CpuPath) -> Result<StaticLinear> {
        let path = c_path(path.as_ref())?;
        let name = name.map(|name| c_text(name, "name")).transpose()?;
        let name = name.as_ref().map_or(ptr::null(), |name| name.as_ptr());
        // SAFETY: texts that end with a zero, and where the handle goes.
        let handle = StaticLinearHandle::new(|out| unsafe {
            sys::isobit_static_linear_load(path.as_ptr(), name, cpu_path as i32, out)
        })?;
        StaticLinear::with_info(handle)
    }

    fn with_info(handle: StaticLinearHandle) -> Result<StaticLinear> {
        let mut info = sized!(isobit_static_linear_info);
        // SAFETY: handle and structure live.
        check(unsafe { sys::isobit_static_linear_get_info(handle.get(), &mut info) })?;
        Ok(StaticLinear { handle, info })
    }

    /// N.
    pub fn rows(&self) -> i64 {
        self.info.rows
    }

    /// K.
    pub fn columns(&self) -> i64 {
        self.info.columns
    }

    /// The instruction set that it was packed for.
    pub fn path(&self) -> CpuPath {
        CpuPath::from_number(self.info.cpu_path)
    }

    /// The kernel that it runs.
    pub fn kernel(&self) -> &'static str {
        // SAFETY: a literal of the library, which stays loaded.
        unsafe { text(sys::isobit_static_linear_kernel(self.handle.get())) }
    }

    /// As [`Linear::workspace`].
    pub fn workspace(&self, m: i64, threads: i32) -> Result<LinearWorkspace> {
        // SAFETY: a handle that lives, and where the new one goes.
        WorkspaceHandle::new(|out| unsafe {
            sys::isobit_static_linear_workspace_create(self.handle.get(), m, threads, out)
        })
        .map(LinearWorkspace)
    }

    /// `m` rows of codes: x is i8, u8, i16 or u16 as the input grid says, y as the output grid says, i32 without one.
    pub fn forward<X: Element, Y: Element>(
        &self,
        x: &[X],
        y: &mut [Y],
        m: i64,
        workspace: &mut LinearWorkspace,
        run: &LinearRun,
    ) -> Result<()> {
        check_dtype::<X>(self.info.x_dtype, "x")?;
        check_dtype::<Y>(self.info.y_dtype, "y")?;
        let options = run.to_c();
        // SAFETY: as in Linear::forward, and the types are the layer's.
        check(unsafe {
            sys::isobit_static_linear_forward(
                self.handle.get(),
                x.as_ptr().cast(),
                count(x),
                y.as_mut_ptr().cast(),
                count(y),
                m,
                workspace.0.get(),
                &options,
            )
        })
    }
}

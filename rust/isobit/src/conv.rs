// SPDX-License-Identifier: Apache-2.0
use std::os::raw::c_void;
use std::path::Path;
use std::ptr;

use isobit_sys as sys;

use crate::element::{check_dtype, Element};
use crate::error::{check, Error, Result};
use crate::handle::{c_path, c_text, count, handle, sized};
use crate::linear::{Activations, LinearOptions, LinearRun, LinearWorkspace, Rounding, StaticLinearOptions};
use crate::low_bit::LowBitMatrix;
use crate::pool::{CpuPath, Grid};

handle!(ConvHandle, isobit_conv, isobit_conv_destroy);
handle!(StaticConvHandle, isobit_static_conv, isobit_static_conv_destroy);
handle!(StreamHandle, isobit_static_conv_stream, isobit_static_conv_stream_destroy);
handle!(StateHandle, isobit_static_conv_state, isobit_static_conv_state_destroy);
handle!(PoolLayerHandle, isobit_static_pool, isobit_static_pool_destroy);

/// What a layer does along one dimension of an image; `Default` is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvAxis {
    /// R or S. 0 counts as 1, as in the next two.
    pub kernel: i64,
    /// Pixels of x from output to output.
    pub stride: i64,
    /// Pixels of x from one kernel element to the next.
    pub dilation: i64,
    /// Top or left.
    pub pad_before: i64,
    /// Bottom or right.
    pub pad_after: i64,
    /// Of a transposed convolution: outputs beyond the last, less than stride or dilation.
    pub more: i64,
}

impl Default for ConvAxis {
    fn default() -> ConvAxis {
        ConvAxis { kernel: 1, stride: 1, dilation: 1, pad_before: 0, pad_after: 0, more: 0 }
    }
}

impl ConvAxis {
    fn from_c(c: &sys::isobit_conv_axis) -> ConvAxis {
        ConvAxis {
            kernel: c.kernel,
            stride: c.stride,
            dilation: c.dilation,
            pad_before: c.pad_before,
            pad_after: c.pad_after,
            more: c.more,
        }
    }

    fn to_c(self) -> sys::isobit_conv_axis {
        sys::isobit_conv_axis {
            kernel: self.kernel,
            stride: self.stride,
            dilation: self.dilation,
            pad_before: self.pad_before,
            pad_after: self.pad_after,
            more: self.more,
        }
    }
}

/// A convolution without its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// C.
    pub channels: i64,
    /// O.
    pub outputs: i64,
    /// Divides both; depthwise: C. 0 counts as 1.
    pub groups: i64,
    /// Along H.
    pub rows: ConvAxis,
    /// Along W.
    pub columns: ConvAxis,
    /// A transposed convolution.
    pub transposed: bool,
}

impl Default for ConvShape {
    fn default() -> ConvShape {
        let axis = ConvAxis::default();
        ConvShape { channels: 1, outputs: 1, groups: 1, rows: axis, columns: axis, transposed: false }
    }
}

impl ConvShape {
    pub(crate) fn to_c(self) -> sys::isobit_conv_shape {
        let mut c = sized!(isobit_conv_shape);
        c.transposed = self.transposed as i32;
        c.channels = self.channels;
        c.outputs = self.outputs;
        c.groups = self.groups;
        c.rows = self.rows.to_c();
        c.columns = self.columns.to_c();
        c
    }
}

/// The shape in what C says of a layer of either kind.
macro_rules! shape_of {
    ($info:expr) => {
        ConvShape {
            channels: $info.channels,
            outputs: $info.outputs,
            groups: $info.groups,
            rows: ConvAxis::from_c(&$info.rows),
            columns: ConvAxis::from_c(&$info.columns),
            transposed: $info.transposed == 1,
        }
    };
}

/// H and W, or P and Q.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageSize {
    /// H or P.
    pub rows: i64,
    /// W or Q.
    pub columns: i64,
}

/// `call` calls the function that writes P and Q.
fn output_size(call: impl FnOnce(*mut i64, *mut i64) -> i32) -> Result<ImageSize> {
    let mut size = ImageSize { rows: 0, columns: 0 };
    check(call(&mut size.rows, &mut size.columns))?;
    Ok(size)
}

/// A convolution with floating-point images in and out, on low-bit weights: x `[B, H, W, C]`, y `[B, P, Q, O]`.
#[derive(Debug)]
pub struct Conv {
    handle: ConvHandle,
    info: sys::isobit_conv_info,
}

// SAFETY: a layer never changes, and the library ties it to no thread.
unsafe impl Send for Conv {}
// SAFETY: as above.
unsafe impl Sync for Conv {}

impl Conv {
    /// `matrix`: weights `[O * R * S, C / groups]`, rows in the order (o, r, s), with groups along the channels; or
    /// `[O, R * S * C / groups]` over (r, s, c), c fastest, with one group a row. Int8PerImage takes the second only,
    /// symmetric. The matrix is not needed afterwards.
    pub fn new(matrix: &LowBitMatrix, shape: &ConvShape, options: &LinearOptions) -> Result<Conv> {
        let of = shape.to_c();
        let c = options.to_c()?;
        // SAFETY: a handle, structures and a slice that live, and where the new handle goes.
        let handle = ConvHandle::new(|out| unsafe { sys::isobit_conv_create(matrix.handle.get(), &of, &c, out) })?;
        let mut info = sized!(isobit_conv_info);
        // SAFETY: handle and structure live.
        check(unsafe { sys::isobit_conv_get_info(handle.get(), &mut info) })?;
        Ok(Conv { handle, info })
    }

    /// What it was made with.
    pub fn shape(&self) -> ConvShape {
        shape_of!(self.info)
    }

    /// What happens to x.
    pub fn activations(&self) -> Activations {
        Activations::from_number(self.info.activations)
    }

    /// The instruction set that it was packed for.
    pub fn path(&self) -> CpuPath {
        CpuPath::from_number(self.info.cpu_path)
    }

    /// P and Q of images of that size.
    pub fn output_size(&self, image: ImageSize) -> Result<ImageSize> {
        // SAFETY: a handle that lives, and where the numbers go.
        output_size(|rows, columns| unsafe {
            sys::isobit_conv_output_size(self.handle.get(), image.rows, image.columns, rows, columns)
        })
    }

    /// Memory for calls with up to `images` images of that size on up to `threads` threads, 1..=1024.
    pub fn workspace(&self, images: i64, image: ImageSize, threads: i32) -> Result<LinearWorkspace> {
        // SAFETY: a handle that lives, and where the new one goes.
        LinearWorkspace::new(|out| unsafe {
            sys::isobit_conv_workspace_create(self.handle.get(), images, image.rows, image.columns, threads, out)
        })
    }

    /// x `[images, H, W, C]` to y `[images, P, Q, O]`. Types: Float: f32, F16 or Bf16, the same of x and y; Int8: x
    /// also f64, any pair. A pixel (Int8PerImage: an image) that is not finite is refused by its place (Int8); nothing
    /// is written then. Strides are from pixel to pixel.
    pub fn forward<X: Element, Y: Element>(
        &self,
        x: &[X],
        y: &mut [Y],
        images: i64,
        image: ImageSize,
        workspace: &mut LinearWorkspace,
        run: &LinearRun,
    ) -> Result<()> {
        let options = run.to_c();
        // SAFETY: handles, slices with types and lengths, and a structure that live; &mut says that nobody else uses
        // them.
        check(unsafe {
            sys::isobit_conv_forward(
                self.handle.get(),
                x.as_ptr().cast(),
                X::DTYPE,
                count(x),
                y.as_mut_ptr().cast(),
                Y::DTYPE,
                count(y),
                images,
                image.rows,
                image.columns,
                workspace.get(),
                &options,
            )
        })
    }
}

/// A convolution of static codes of 2 to 16 bits, integers only: x `[B, H, W, C]`, y `[B, P, Q, O]`.
#[derive(Debug)]
pub struct StaticConv {
    pub(crate) handle: StaticConvHandle,
    pub(crate) info: sys::isobit_static_conv_info,
}

// SAFETY: a layer never changes, and the library ties it to no thread.
unsafe impl Send for StaticConv {}
// SAFETY: as above.
unsafe impl Sync for StaticConv {}

/// Codes that the layer adds, where it adds some, as C takes them: where they begin, and how many.
pub(crate) fn residual_of<R: Element>(
    info: &sys::isobit_static_conv_info,
    residual: Option<(*const R, i64)>,
) -> Result<(*const c_void, i64)> {
    match residual {
        None => Ok((ptr::null(), 0)),
        Some(_) if info.has_residual == 0 => {
            Err(Error::invalid("residual is given, but the layer adds none".to_string()))
        }
        Some((codes, count)) => {
            check_dtype::<R>(info.residual_dtype, "residual")?;
            Ok((codes.cast(), count))
        }
    }
}

impl StaticConv {
    /// `matrix`: weights `[O, R * S * C / groups]` over (r, s, c), c fastest; 1, 2, 4 or 8 bits, symmetric, one group a
    /// row. `residual`: the grid of codes that [`StaticConv::forward_adding`] adds before the clamp.
    pub fn new(
        matrix: &LowBitMatrix,
        shape: &ConvShape,
        options: &StaticLinearOptions,
        residual: Option<Grid>,
    ) -> Result<StaticConv> {
        let of = shape.to_c();
        let c = options.to_c()?;
        let added = residual.map(Grid::to_c);
        let added = added.as_ref().map_or(ptr::null(), |grid| grid as *const _);
        // SAFETY: a handle, structures and a slice that live, and where the new handle goes.
        let handle = StaticConvHandle::new(|out| unsafe {
            sys::isobit_static_conv_create(matrix.handle.get(), &of, &c, added, out)
        })?;
        StaticConv::with_info(handle)
    }

    /// A layer that `StaticConvLayer::save` of C++ wrote. `name`: which layer of a file with several. Every field is
    /// checked and the overflow proof made anew.
    pub fn load(path: impl AsRef<Path>, name: Option<&str>, cpu_path: CpuPath) -> Result<StaticConv> {
        let path = c_path(path.as_ref())?;
        let name = name.map(|name| c_text(name, "name")).transpose()?;
        let name = name.as_ref().map_or(ptr::null(), |name| name.as_ptr());
        // SAFETY: texts that end with a zero, and where the handle goes.
        let handle = StaticConvHandle::new(|out| unsafe {
            sys::isobit_static_conv_load(path.as_ptr(), name, cpu_path as i32, out)
        })?;
        StaticConv::with_info(handle)
    }

    fn with_info(handle: StaticConvHandle) -> Result<StaticConv> {
        let mut info = sized!(isobit_static_conv_info);
        // SAFETY: handle and structure live.
        check(unsafe { sys::isobit_static_conv_get_info(handle.get(), &mut info) })?;
        Ok(StaticConv { handle, info })
    }

    /// What it was made with.
    pub fn shape(&self) -> ConvShape {
        shape_of!(self.info)
    }

    /// Of x.
    pub fn input(&self) -> Grid {
        Grid::from_c(&self.info.input)
    }

    /// Of y; None: y is the accumulators, i32.
    pub fn output(&self) -> Option<Grid> {
        (self.info.has_output == 1).then(|| Grid::from_c(&self.info.output))
    }

    /// Of the codes that are added; None: the layer adds none.
    pub fn residual(&self) -> Option<Grid> {
        (self.info.has_residual == 1).then(|| Grid::from_c(&self.info.residual))
    }

    /// The instruction set that it was packed for.
    pub fn path(&self) -> CpuPath {
        CpuPath::from_number(self.info.cpu_path)
    }

    /// P and Q of images of that size.
    pub fn output_size(&self, image: ImageSize) -> Result<ImageSize> {
        // SAFETY: a handle that lives, and where the numbers go.
        output_size(|rows, columns| unsafe {
            sys::isobit_static_conv_output_size(self.handle.get(), image.rows, image.columns, rows, columns)
        })
    }

    /// Memory for calls with up to `images` images of that size on up to `threads` threads, 1..=1024.
    pub fn workspace(&self, images: i64, image: ImageSize, threads: i32) -> Result<LinearWorkspace> {
        // SAFETY: a handle that lives, and where the new one goes.
        LinearWorkspace::new(|out| unsafe {
            sys::isobit_static_conv_workspace_create(self.handle.get(), images, image.rows, image.columns, threads, out)
        })
    }

    /// Codes x `[images, H, W, C]` to y `[images, P, Q, O]`: x is i8, u8, i16 or u16 as the input grid says, y as the
    /// output grid says, i32 without one. Strides are from pixel to pixel.
    pub fn forward<X: Element, Y: Element>(
        &self,
        x: &[X],
        y: &mut [Y],
        images: i64,
        image: ImageSize,
        workspace: &mut LinearWorkspace,
        run: &LinearRun,
    ) -> Result<()> {
        self.run(x, y, images, image, workspace, None::<&[i8]>, run)
    }

    /// The same of a layer that adds a residual: codes as y, of the residual's grid.
    #[allow(clippy::too_many_arguments)]
    pub fn forward_adding<X: Element, Y: Element, R: Element>(
        &self,
        x: &[X],
        residual: &[R],
        y: &mut [Y],
        images: i64,
        image: ImageSize,
        workspace: &mut LinearWorkspace,
        run: &LinearRun,
    ) -> Result<()> {
        self.run(x, y, images, image, workspace, Some(residual), run)
    }

    #[allow(clippy::too_many_arguments)]
    fn run<X: Element, Y: Element, R: Element>(
        &self,
        x: &[X],
        y: &mut [Y],
        images: i64,
        image: ImageSize,
        workspace: &mut LinearWorkspace,
        residual: Option<&[R]>,
        run: &LinearRun,
    ) -> Result<()> {
        check_dtype::<X>(self.info.x_dtype, "x")?;
        check_dtype::<Y>(self.info.y_dtype, "y")?;
        let (residual, residual_count) = residual_of(&self.info, residual.map(|codes| (codes.as_ptr(), count(codes))))?;
        let options = run.to_c();
        // SAFETY: handles, slices of the layer's types with their lengths, and a structure that live; &mut says that
        // nobody else uses them.
        check(unsafe {
            sys::isobit_static_conv_forward(
                self.handle.get(),
                x.as_ptr().cast(),
                count(x),
                y.as_mut_ptr().cast(),
                count(y),
                images,
                image.rows,
                image.columns,
                workspace.get(),
                residual,
                residual_count,
                &options,
            )
        })
    }

    /// The layer as a stream. Its rows have kernel 1, stride 1 and no pads; `columns.pad_after` is 0, and `pad_before`
    /// from max(0, extent - stride) to extent - 1 with extent = dilation * (kernel - 1) + 1.
    pub fn stream(&self) -> Result<StaticConvStream> {
        // SAFETY: a handle that lives, and where the new one goes.
        let handle = StreamHandle::new(|out| unsafe { sys::isobit_static_conv_stream_create(self.handle.get(), out) })?;
        Ok(StaticConvStream { handle, info: self.info })
    }
}

/// A convolution of one dimension whose x comes in chunks of columns.
#[derive(Debug)]
pub struct StaticConvStream {
    handle: StreamHandle,
    info: sys::isobit_static_conv_info,
}

// SAFETY: a stream never changes, and the library ties it to no thread.
unsafe impl Send for StaticConvStream {}
// SAFETY: as above.
unsafe impl Sync for StaticConvStream {}

/// What a stream has seen last.
#[derive(Debug)]
pub struct StaticConvState(StateHandle);

// SAFETY: the library ties a state to no thread; calls take it as &mut.
unsafe impl Send for StaticConvState {}

impl StaticConvState {
    /// As before the first chunk.
    pub fn reset(&mut self) -> Result<()> {
        // SAFETY: a handle that lives, and that nobody else uses.
        check(unsafe { sys::isobit_static_conv_state_reset(self.0.get()) })
    }
}

impl StaticConvStream {
    /// The state before the first chunk, of `images` images and chunks of up to `columns` columns.
    pub fn state(&self, images: i64, columns: i64) -> Result<StaticConvState> {
        // SAFETY: a handle that lives, and where the new one goes.
        StateHandle::new(|out| unsafe { sys::isobit_static_conv_state_create(self.handle.get(), images, columns, out) })
            .map(StaticConvState)
    }

    /// Memory for such chunks on up to `threads` threads, 1..=1024.
    pub fn workspace(&self, images: i64, columns: i64, threads: i32) -> Result<LinearWorkspace> {
        // SAFETY: a handle that lives, and where the new one goes.
        LinearWorkspace::new(|out| unsafe {
            sys::isobit_static_conv_stream_workspace_create(self.handle.get(), images, columns, threads, out)
        })
    }

    /// Codes x `[images, columns, C]` to y `[images, columns / stride, O]`: the outputs of all chunks, one after the
    /// other, are those of the whole. `columns`: a multiple of the stride, at most those of the state.
    pub fn forward<X: Element, Y: Element>(
        &self,
        x: &[X],
        y: &mut [Y],
        columns: i64,
        state: &mut StaticConvState,
        workspace: &mut LinearWorkspace,
        run: &LinearRun,
    ) -> Result<()> {
        self.run(x, y, columns, state, workspace, None::<&[i8]>, run)
    }

    /// The same of a layer that adds a residual: codes as y, of the residual's grid.
    #[allow(clippy::too_many_arguments)]
    pub fn forward_adding<X: Element, Y: Element, R: Element>(
        &self,
        x: &[X],
        residual: &[R],
        y: &mut [Y],
        columns: i64,
        state: &mut StaticConvState,
        workspace: &mut LinearWorkspace,
        run: &LinearRun,
    ) -> Result<()> {
        self.run(x, y, columns, state, workspace, Some(residual), run)
    }

    #[allow(clippy::too_many_arguments)]
    fn run<X: Element, Y: Element, R: Element>(
        &self,
        x: &[X],
        y: &mut [Y],
        columns: i64,
        state: &mut StaticConvState,
        workspace: &mut LinearWorkspace,
        residual: Option<&[R]>,
        run: &LinearRun,
    ) -> Result<()> {
        check_dtype::<X>(self.info.x_dtype, "x")?;
        check_dtype::<Y>(self.info.y_dtype, "y")?;
        let (residual, residual_count) = residual_of(&self.info, residual.map(|codes| (codes.as_ptr(), count(codes))))?;
        let options = run.to_c();
        // SAFETY: as in StaticConv::run.
        check(unsafe {
            sys::isobit_static_conv_stream_forward(
                self.handle.get(),
                x.as_ptr().cast(),
                count(x),
                y.as_mut_ptr().cast(),
                count(y),
                columns,
                state.0.get(),
                workspace.get(),
                residual,
                residual_count,
                &options,
            )
        })
    }
}

/// What a [`StaticPool`] takes of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum PoolKind {
    /// The largest code inside x.
    #[default]
    Max = sys::ISOBIT_POOL_MAX,
    /// The average.
    Average = sys::ISOBIT_POOL_AVERAGE,
}

/// Options of a [`StaticPool`].
#[derive(Clone, Copy, Debug)]
pub struct StaticPoolOptions {
    /// What becomes of a window.
    pub kind: PoolKind,
    /// The window along H; each pad is smaller than its side.
    pub rows: ConvAxis,
    /// Along W.
    pub columns: ConvAxis,
    /// Of x: 2 to 16 bits.
    pub input: Grid,
    /// Of y: 2 to 16 bits; None: that of x, which it is of `Max`.
    pub output: Option<Grid>,
    /// Averages are of R * S pixels, those outside x being its zero point, not of the pixels inside x.
    pub counts_outside: bool,
    /// Of averages.
    pub rounding: Rounding,
}

/// Pooling of static codes.
#[derive(Debug)]
pub struct StaticPool {
    handle: PoolLayerHandle,
    info: sys::isobit_static_pool_info,
}

// SAFETY: a layer never changes, and the library ties it to no thread.
unsafe impl Send for StaticPool {}
// SAFETY: as above.
unsafe impl Sync for StaticPool {}

impl StaticPool {
    /// Checks the options.
    pub fn new(options: &StaticPoolOptions) -> Result<StaticPool> {
        let mut c = sized!(isobit_static_pool_options);
        c.kind = options.kind as i32;
        c.counts_outside = options.counts_outside as i32;
        c.rounding = options.rounding as i32;
        c.rows = options.rows.to_c();
        c.columns = options.columns.to_c();
        c.input = options.input.to_c();
        // C takes a grid of zeros for none.
        if options.output.map_or(false, |output| output.bits == 0) {
            return Err(Error::invalid("output.bits is 0, must be 2..=16".to_string()));
        }
        c.output = options.output.unwrap_or(options.input).to_c();
        // SAFETY: a structure that lives, and where the handle goes.
        let handle = PoolLayerHandle::new(|out| unsafe { sys::isobit_static_pool_create(&c, out) })?;
        let mut info = sized!(isobit_static_pool_info);
        // SAFETY: handle and structure live.
        check(unsafe { sys::isobit_static_pool_get_info(handle.get(), &mut info) })?;
        Ok(StaticPool { handle, info })
    }

    /// P and Q of images of that size.
    pub fn output_size(&self, image: ImageSize) -> Result<ImageSize> {
        // SAFETY: a handle that lives, and where the numbers go.
        output_size(|rows, columns| unsafe {
            sys::isobit_static_pool_output_size(self.handle.get(), image.rows, image.columns, rows, columns)
        })
    }

    /// Codes x `[images, H, W, channels]` to y `[images, P, Q, channels]`, of the types of the grids.
    pub fn forward<X: Element, Y: Element>(
        &self,
        x: &[X],
        y: &mut [Y],
        images: i64,
        image: ImageSize,
        channels: i64,
        run: &LinearRun,
    ) -> Result<()> {
        check_dtype::<X>(self.info.x_dtype, "x")?;
        check_dtype::<Y>(self.info.y_dtype, "y")?;
        let options = run.to_c();
        // SAFETY: as in StaticConv::run.
        check(unsafe {
            sys::isobit_static_pool_forward(
                self.handle.get(),
                x.as_ptr().cast(),
                count(x),
                y.as_mut_ptr().cast(),
                count(y),
                images,
                image.rows,
                image.columns,
                channels,
                &options,
            )
        })
    }
}

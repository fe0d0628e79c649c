// SPDX-License-Identifier: Apache-2.0
use std::os::raw::c_void;
use std::ptr;

use isobit_sys as sys;

use crate::conv::{residual_of, ConvShape, ImageSize, StaticConv};
use crate::element::{check_dtype, Element};
use crate::error::{check, Result};
use crate::handle::{handle, sized};
use crate::linear::{LinearOptions, StaticLinear};
use crate::low_bit::LowBitMatrix;

handle!(DeviceLinearHandle, isobit_device_linear, isobit_device_linear_destroy);
handle!(DeviceConvHandle, isobit_device_conv, isobit_device_conv_destroy);
handle!(DeviceStaticConvHandle, isobit_device_static_conv, isobit_device_static_conv_destroy);

/// Options of a call on a device; `Default` is none of them.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRun {
    /// Elements from row to row of x, at least K, or from pixel to pixel, at least C; 0: K, C.
    pub x_stride: i64,
    /// Elements from row to row of y, at least N, or from output to output, at least O; 0: N, O. What lies between is
    /// not written.
    pub y_stride: i64,
    /// A `cudaStream_t`; null: the default stream.
    pub stream: *mut c_void,
}

impl Default for DeviceRun {
    fn default() -> Self {
        DeviceRun { x_stride: 0, y_stride: 0, stream: ptr::null_mut() }
    }
}

impl DeviceRun {
    fn to_c(self) -> sys::isobit_device_run_options {
        let mut options = sized!(isobit_device_run_options);
        options.x_stride = self.x_stride;
        options.y_stride = self.y_stride;
        options.stream = self.stream;
        options
    }
}

/// A [`Linear`](crate::Linear) or [`StaticLinear`] on one CUDA device, with the bytes of the one on the host; the order
/// of sums of float activations is the kernel's own. It needs `libisobit_cuda.so` of the same release, which the first
/// call looks for: the file that the environment variable `ISOBIT_CUDA_LIBRARY` names, else the one in the folder of
/// `libisobit.so`, else what the loader finds. Memory of the device is the caller's: addresses are those of CUDA.
#[derive(Debug)]
pub struct DeviceLinear(DeviceLinearHandle);

// SAFETY: a layer never changes, and the library ties it to no thread.
unsafe impl Send for DeviceLinear {}
// SAFETY: as above.
unsafe impl Sync for DeviceLinear {}

impl DeviceLinear {
    /// Packs the weights and copies them to the device with that number; waits for that. `options.path` must be the
    /// default. [`StatusCode::Unsupported`](crate::StatusCode) without `libisobit_cuda.so`, for a device without code,
    /// and for columns in another order than x.
    pub fn new(matrix: &LowBitMatrix, options: &LinearOptions, device: i32) -> Result<DeviceLinear> {
        let c = options.to_c()?;
        // SAFETY: a handle, a structure and a slice that live, and where the new handle goes.
        DeviceLinearHandle::new(|out| unsafe { sys::isobit_device_linear_create(matrix.handle.get(), &c, device, out) })
            .map(DeviceLinear)
    }

    /// The same of a layer of static codes.
    pub fn new_static(layer: &StaticLinear, device: i32) -> Result<DeviceLinear> {
        // SAFETY: a handle that lives, and where the new one goes.
        DeviceLinearHandle::new(|out| unsafe {
            sys::isobit_device_linear_create_static(layer.handle.get(), device, out)
        })
        .map(DeviceLinear)
    }

    /// Bytes of device memory, from a multiple of 256 on, for runs of at most `m` rows.
    pub fn workspace_bytes(&self, m: i64) -> Result<i64> {
        let mut bytes = 0;
        // SAFETY: a handle and a number that live.
        check(unsafe { sys::isobit_device_linear_workspace_bytes(self.0.get(), m, &mut bytes) })?;
        Ok(bytes)
    }

    /// `m` rows of x, `x_count` elements, to rows of y, `y_count` elements, with the types of the layer on the host.
    /// Asynchronous on the stream; allocates nothing. A row of x that is not finite (Int8) gives NaN, a code outside
    /// the grid counts as the nearer end, and [`check_input`](DeviceLinear::check_input) tells of them. Memory that is
    /// not the device's is refused by name.
    ///
    /// # Safety
    /// `x`, `y` and `workspace` are allocations of the device of at least those sizes, which live until the stream has
    /// passed this run, as the layer does; nobody writes x, or reads or writes the others, until then. The stream is
    /// one of the device.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn forward<X: Element, Y: Element>(
        &self,
        x: *const X,
        x_count: i64,
        y: *mut Y,
        y_count: i64,
        m: i64,
        workspace: *mut c_void,
        workspace_bytes: i64,
        run: &DeviceRun,
    ) -> Result<()> {
        let options = run.to_c();
        // SAFETY: a handle and a structure that live; the rest is promised by the caller.
        check(unsafe {
            sys::isobit_device_linear_forward(
                self.0.get(),
                x.cast(),
                X::DTYPE,
                x_count,
                y.cast(),
                Y::DTYPE,
                y_count,
                m,
                workspace,
                workspace_bytes,
                &options,
            )
        })
    }

    /// Waits for the stream; an error with the first row of x that is not finite, or the first code outside the grid,
    /// in the last run, which was of `m` rows and used this workspace.
    ///
    /// # Safety
    /// As of [`forward`](DeviceLinear::forward).
    pub unsafe fn check_input(
        &self,
        workspace: *mut c_void,
        workspace_bytes: i64,
        m: i64,
        stream: *mut c_void,
    ) -> Result<()> {
        // SAFETY: a handle that lives; the rest is promised by the caller.
        check(unsafe { sys::isobit_device_linear_check_input(self.0.get(), workspace, workspace_bytes, m, stream) })
    }
}

/// A [`Conv`](crate::Conv) on one CUDA device, with the bytes of the one on the host; the order of sums of float
/// activations is the kernel's own. It needs `libisobit_cuda.so`, and takes addresses of CUDA, as a [`DeviceLinear`].
#[derive(Debug)]
pub struct DeviceConv(DeviceConvHandle);

// SAFETY: a layer never changes, and the library ties it to no thread.
unsafe impl Send for DeviceConv {}
// SAFETY: as above.
unsafe impl Sync for DeviceConv {}

impl DeviceConv {
    /// Packs the weights, as [`Conv::new`](crate::Conv::new) takes them, and copies them to the device with that
    /// number; waits for that. `options.path` must be the default. [`StatusCode::Unsupported`](crate::StatusCode)
    /// without `libisobit_cuda.so`, and for a device without code.
    pub fn new(matrix: &LowBitMatrix, shape: &ConvShape, options: &LinearOptions, device: i32) -> Result<DeviceConv> {
        let of = shape.to_c();
        let c = options.to_c()?;
        // SAFETY: a handle, structures and a slice that live, and where the new handle goes.
        DeviceConvHandle::new(|out| unsafe {
            sys::isobit_device_conv_create(matrix.handle.get(), &of, &c, device, out)
        })
        .map(DeviceConv)
    }

    /// Bytes of device memory, from a multiple of 256 on, for a run of `images` images of that size.
    pub fn workspace_bytes(&self, images: i64, image: ImageSize) -> Result<i64> {
        let mut bytes = 0;
        // SAFETY: a handle and a number that live.
        check(unsafe {
            sys::isobit_device_conv_workspace_bytes(self.0.get(), images, image.rows, image.columns, &mut bytes)
        })?;
        Ok(bytes)
    }

    /// x `[images, H, W, C]`, `x_count` elements, to y `[images, P, Q, O]`, `y_count` elements, with the types of
    /// [`Conv::forward`](crate::Conv::forward). Asynchronous on the stream; allocates nothing. Outputs of a pixel
    /// (Int8PerImage: an image) that is not finite are NaN (Int8), and [`check_input`](DeviceConv::check_input) tells
    /// of it. Memory that is not the device's is refused by name.
    ///
    /// # Safety
    /// As of [`DeviceLinear::forward`].
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn forward<X: Element, Y: Element>(
        &self,
        x: *const X,
        x_count: i64,
        y: *mut Y,
        y_count: i64,
        images: i64,
        image: ImageSize,
        workspace: *mut c_void,
        workspace_bytes: i64,
        run: &DeviceRun,
    ) -> Result<()> {
        let options = run.to_c();
        // SAFETY: a handle and a structure that live; the rest is promised by the caller.
        check(unsafe {
            sys::isobit_device_conv_forward(
                self.0.get(),
                x.cast(),
                X::DTYPE,
                x_count,
                y.cast(),
                Y::DTYPE,
                y_count,
                images,
                image.rows,
                image.columns,
                workspace,
                workspace_bytes,
                &options,
            )
        })
    }

    /// Waits for the stream; an error with the first pixel or image of x that is not finite (Int8), of those that
    /// outputs read, in the last run, which was of `images` images of that size and used this workspace.
    ///
    /// # Safety
    /// As of [`DeviceLinear::forward`].
    pub unsafe fn check_input(
        &self,
        workspace: *const c_void,
        workspace_bytes: i64,
        images: i64,
        image: ImageSize,
        stream: *mut c_void,
    ) -> Result<()> {
        // SAFETY: a handle that lives; the rest is promised by the caller.
        check(unsafe {
            sys::isobit_device_conv_check_input(
                self.0.get(),
                workspace,
                workspace_bytes,
                images,
                image.rows,
                image.columns,
                stream,
            )
        })
    }
}

/// A [`StaticConv`] on one CUDA device, with the bytes of the one on the host. It needs `libisobit_cuda.so`, and takes
/// addresses of CUDA, as a [`DeviceLinear`].
#[derive(Debug)]
pub struct DeviceStaticConv {
    handle: DeviceStaticConvHandle,
    info: sys::isobit_static_conv_info,
}

// SAFETY: a layer never changes, and the library ties it to no thread.
unsafe impl Send for DeviceStaticConv {}
// SAFETY: as above.
unsafe impl Sync for DeviceStaticConv {}

impl DeviceStaticConv {
    /// Packs the weights and copies them to the device with that number; waits for that.
    /// [`StatusCode::Unsupported`](crate::StatusCode) without `libisobit_cuda.so`, and for a device without code.
    pub fn new(layer: &StaticConv, device: i32) -> Result<DeviceStaticConv> {
        // SAFETY: a handle that lives, and where the new one goes.
        let handle = DeviceStaticConvHandle::new(|out| unsafe {
            sys::isobit_device_static_conv_create(layer.handle.get(), device, out)
        })?;
        Ok(DeviceStaticConv { handle, info: layer.info })
    }

    /// Bytes of device memory, from a multiple of 256 on, for a run of `images` images of that size.
    pub fn workspace_bytes(&self, images: i64, image: ImageSize) -> Result<i64> {
        let mut bytes = 0;
        // SAFETY: a handle and a number that live.
        check(unsafe {
            sys::isobit_device_static_conv_workspace_bytes(
                self.handle.get(),
                images,
                image.rows,
                image.columns,
                &mut bytes,
            )
        })?;
        Ok(bytes)
    }

    /// Codes x `[images, H, W, C]`, `x_count` elements, to y `[images, P, Q, O]`, `y_count` elements, with the types of
    /// the layer on the host. Asynchronous on the stream; allocates nothing. A code outside the grid counts as the
    /// nearer end, and [`check_input`](DeviceStaticConv::check_input) tells of those of x. Memory that is not the
    /// device's is refused by name.
    ///
    /// # Safety
    /// As of [`DeviceLinear::forward`].
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn forward<X: Element, Y: Element>(
        &self,
        x: *const X,
        x_count: i64,
        y: *mut Y,
        y_count: i64,
        images: i64,
        image: ImageSize,
        workspace: *mut c_void,
        workspace_bytes: i64,
        run: &DeviceRun,
    ) -> Result<()> {
        let none = None::<(*const i8, i64)>;
        // SAFETY: promised by the caller.
        unsafe { self.run((x, x_count), none, (y, y_count), images, image, (workspace, workspace_bytes), run) }
    }

    /// The same of a layer that adds a residual: codes as y, `residual_count` elements, of the residual's grid.
    ///
    /// # Safety
    /// As of [`DeviceLinear::forward`]; the residual is as x, but may be y.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn forward_adding<X: Element, Y: Element, R: Element>(
        &self,
        x: *const X,
        x_count: i64,
        residual: *const R,
        residual_count: i64,
        y: *mut Y,
        y_count: i64,
        images: i64,
        image: ImageSize,
        workspace: *mut c_void,
        workspace_bytes: i64,
        run: &DeviceRun,
    ) -> Result<()> {
        let added = Some((residual, residual_count));
        // SAFETY: promised by the caller.
        unsafe { self.run((x, x_count), added, (y, y_count), images, image, (workspace, workspace_bytes), run) }
    }

    #[allow(clippy::too_many_arguments)]
    unsafe fn run<X: Element, Y: Element, R: Element>(
        &self,
        (x, x_count): (*const X, i64),
        residual: Option<(*const R, i64)>,
        (y, y_count): (*mut Y, i64),
        images: i64,
        image: ImageSize,
        (workspace, workspace_bytes): (*mut c_void, i64),
        run: &DeviceRun,
    ) -> Result<()> {
        check_dtype::<X>(self.info.x_dtype, "x")?;
        check_dtype::<Y>(self.info.y_dtype, "y")?;
        let (residual, residual_count) = residual_of(&self.info, residual)?;
        let options = run.to_c();
        // SAFETY: a handle and a structure that live; the rest is promised by the caller.
        check(unsafe {
            sys::isobit_device_static_conv_forward(
                self.handle.get(),
                x.cast(),
                x_count,
                y.cast(),
                y_count,
                images,
                image.rows,
                image.columns,
                workspace,
                workspace_bytes,
                residual,
                residual_count,
                &options,
            )
        })
    }

    /// Waits for the stream; an error with the first code of x outside the grid, of those that outputs read, in the
    /// last run of at least one image that used this workspace.
    ///
    /// # Safety
    /// As of [`DeviceLinear::forward`].
    pub unsafe fn check_input(
        &self,
        workspace: *const c_void,
        workspace_bytes: i64,
        stream: *mut c_void,
    ) -> Result<()> {
        // SAFETY: a handle that lives; the rest is promised by the caller.
        check(unsafe {
            sys::isobit_device_static_conv_check_input(self.handle.get(), workspace, workspace_bytes, stream)
        })
    }
}

// SPDX-License-Identifier: Apache-2.0
use std::os::raw::c_void;
use std::ptr;

use isobit_sys as sys;

use crate::element::Element;
use crate::error::{check, Result};
use crate::handle::{handle, sized};
use crate::linear::{LinearOptions, StaticLinear};
use crate::low_bit::LowBitMatrix;

handle!(DeviceLinearHandle, isobit_device_linear, isobit_device_linear_destroy);

/// Options of a call on a device; `Default` is none of them.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRun {
    /// Elements from row to row of x, at least K; 0: K.
    pub x_stride: i64,
    /// Elements from row to row of y, at least N; 0: N. What lies between rows is not written.
    pub y_stride: i64,
    /// A `cudaStream_t`; null: the default stream.
    pub stream: *mut c_void,
}

impl Default for DeviceRun {
    fn default() -> Self {
        DeviceRun { x_stride: 0, y_stride: 0, stream: ptr::null_mut() }
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
    /// passed this run, as the layer does; nobody writes x, or reads or writes the others, until then. The stream is one of the device.
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
        let mut options = sized!(isobit_device_run_options);
        options.x_stride = run.x_stride;
        options.y_stride = run.y_stride;
        options.stream = run.stream;
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

// SPDX-License-Identifier: Apache-2.0
//! Linear layers and convolutions on a CUDA device against those on the host. Without a device only refusals are
//! tested, unless ISOBIT_REQUIRE names cuda. ISOBIT_CUDA_LIBRARY names libisobit_cuda.so.
use std::ffi::CString;
use std::os::raw::{c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Once;

use isobit::*;

extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The functions of CUDA's driver that give memory.
struct Driver {
    allocate: unsafe extern "C" fn(*mut u64, usize) -> c_int,
    to_device: unsafe extern "C" fn(u64, *const c_void, usize) -> c_int,
    to_host: unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int,
}

impl Driver {
    /// None where there is no device.
    fn open() -> Option<Driver> {
        const NOW: c_int = 2;
        // SAFETY: texts end with a zero; the functions have these types in cuda.h.
        unsafe {
            let library = dlopen(b"libcuda.so.1\0".as_ptr().cast(), NOW);
            if library.is_null() {
                return None;
            }
            let function = |name: &str| {
                let text = CString::new(name).unwrap();
                let found = dlsym(library, text.as_ptr());
                assert!(!found.is_null(), "{}", name);
                found
            };
            type Init = unsafe extern "C" fn(c_uint) -> c_int;
            type Count = unsafe extern "C" fn(*mut c_int) -> c_int;
            type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
            type Current = unsafe extern "C" fn(*mut c_void) -> c_int;
            let mut count = 0;
            if std::mem::transmute::<_, Init>(function("cuInit"))(0) != 0
                || std::mem::transmute::<_, Count>(function("cuDeviceGetCount"))(&mut count) != 0
                || count == 0
            {
                return None;
            }
            let mut context = ptr::null_mut();
            let retain = std::mem::transmute::<_, Retain>(function("cuDevicePrimaryCtxRetain"));
            assert_eq!(retain(&mut context, 0), 0);
            assert_eq!(std::mem::transmute::<_, Current>(function("cuCtxSetCurrent"))(context), 0);
            Some(Driver {
                allocate: std::mem::transmute(function("cuMemAlloc_v2")),
                to_device: std::mem::transmute(function("cuMemcpyHtoD_v2")),
                to_host: std::mem::transmute(function("cuMemcpyDtoH_v2")),
            })
        }
    }

    fn memory(&self, bytes: usize) -> u64 {
        let mut address = 0;
        // SAFETY: the address lives.
        assert_eq!(unsafe { (self.allocate)(&mut address, bytes) }, 0);
        address
    }

    fn write<T>(&self, values: &[T]) -> u64 {
        let address = self.memory(std::mem::size_of_val(values));
        // SAFETY: both have that size.
        assert_eq!(unsafe { (self.to_device)(address, values.as_ptr().cast(), std::mem::size_of_val(values)) }, 0);
        address
    }

    fn read<T: Copy + Default>(&self, address: u64, count: usize) -> Vec<T> {
        let mut values = vec![T::default(); count];
        let bytes = std::mem::size_of_val(&values[..]);
        // SAFETY: both have that size.
        assert_eq!(unsafe { (self.to_host)(values.as_mut_ptr().cast(), address, bytes) }, 0);
        values
    }
}

const M: i64 = 3;
const N: i64 = 5;
const K: i64 = 64;

fn matrix() -> LowBitMatrix {
    let weights: Vec<f32> = (0..N * K).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
    let options = LowBitOptions {
        bits: BitWidth::Four,
        group: 32,
        kind: Kind::Symmetric,
        method: Method::Absmax,
        scales: ScaleType::F32,
    };
    LowBitMatrix::quantize(&weights, N, K, &options, None).unwrap()
}

/// None where there is no device, which fails where ISOBIT_REQUIRE names cuda; nor is there a library then.
fn device() -> Option<Driver> {
    static NO_LIBRARY: Once = Once::new();
    let driver = Driver::open();
    if driver.is_none() {
        let required = std::env::var("ISOBIT_REQUIRE").unwrap_or_default();
        assert!(!required.split(',').any(|name| name == "cuda"), "ISOBIT_REQUIRE names cuda: no device");
        NO_LIBRARY.call_once(|| std::env::set_var("ISOBIT_CUDA_LIBRARY", "/nowhere/cuda.so"));
    }
    driver
}

fn no_library<T: std::fmt::Debug>(made: Result<T>) {
    let error = made.unwrap_err();
    assert_eq!(error.code(), StatusCode::Unsupported);
    assert!(error.message().contains("/nowhere/cuda.so"), "{}", error);
}

#[test]
fn layers_on_a_device() {
    let driver = device();
    let options = LinearOptions { activations: Activations::Int8, ..Default::default() };
    let error = DeviceLinear::new(&matrix(), &LinearOptions { path: CpuPath::Scalar, ..options }, 0).unwrap_err();
    assert_eq!(error.message(), "options->cpu_path is 2, must be ISOBIT_CPU_DEFAULT, 0, for a device");

    let driver = match driver {
        Some(driver) => driver,
        None => return no_library(DeviceLinear::new(&matrix(), &options, 0)),
    };
    let mut x: Vec<f32> = (0..M * K).map(|i| ((i * 29 % 83) as f32 - 41.0) / 32.0).collect();
    let host = Linear::new(&matrix(), &options).unwrap();
    let mut expected = vec![0.0f32; (M * N) as usize];
    host.forward(&x, &mut expected, M, &mut host.workspace(M, 1).unwrap(), &LinearRun::default()).unwrap();

    let layer = DeviceLinear::new(&matrix(), &options, 0).unwrap();
    let bytes = layer.workspace_bytes(M).unwrap();
    let workspace = driver.memory(bytes as usize) as *mut c_void;
    let y = driver.memory((M * N * 4) as usize);
    let run = |x: &[f32]| {
        let x = driver.write(x) as *const f32;
        // SAFETY: memory of the device of these sizes, which is never given back; check_input waits.
        unsafe {
            layer.forward(x, M * K, y as *mut f32, M * N, M, workspace, bytes, &DeviceRun::default()).unwrap();
            layer.check_input(workspace, bytes, M, ptr::null_mut())
        }
    };
    run(&x).unwrap();
    assert_eq!(driver.read::<f32>(y, (M * N) as usize), expected);
    x[K as usize] = f32::NAN;
    assert!(run(&x).unwrap_err().message().starts_with("x[1] has a NaN"));
    // SAFETY: refused before anything is launched.
    let refused =
        unsafe { layer.forward(x.as_ptr(), M * K, y as *mut f32, M * N, M, workspace, bytes, &DeviceRun::default()) };
    assert!(refused.unwrap_err().message().starts_with("x "));
}

/// Weights of 3 x 3 kernels, from 3 channels to 4.
fn of_three_by_three() -> (LowBitMatrix, ConvShape) {
    let weights: Vec<f32> = (0..4 * 27).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
    let eight = LowBitOptions {
        bits: BitWidth::Eight,
        group: 27,
        kind: Kind::Symmetric,
        method: Method::Absmax,
        scales: ScaleType::F32,
    };
    let matrix = LowBitMatrix::quantize(&weights, 4, 27, &eight, None).unwrap();
    let axis = ConvAxis { kernel: 3, pad_before: 1, pad_after: 1, ..Default::default() };
    let shape = ConvShape { channels: 3, outputs: 4, rows: axis, columns: axis, ..Default::default() };
    (matrix, shape)
}

#[test]
fn convolutions_on_a_device() {
    let driver = device();
    let (matrix, shape) = of_three_by_three();
    let bias = [0.5, -0.5, 0.25, 0.0];
    let options = LinearOptions {
        activations: Activations::Int8,
        bias: Some(&bias),
        clamp: Some((-1.0, 2.0)),
        ..Default::default()
    };
    let on_avx2 = LinearOptions { path: CpuPath::Avx2, ..options };
    let error = DeviceConv::new(&matrix, &shape, &on_avx2, 0).unwrap_err();
    assert_eq!(error.message(), "options->cpu_path is 3, must be ISOBIT_CPU_DEFAULT, 0, for a device");
    let driver = match driver {
        Some(driver) => driver,
        None => return no_library(DeviceConv::new(&matrix, &shape, &options, 0)),
    };
    let image = ImageSize { rows: 5, columns: 6 };
    const PIXELS: i64 = 2 * 5 * 6;
    let mut x: Vec<f32> = (0..PIXELS * 3).map(|i| ((i * 29 % 83) as f32 - 41.0) / 32.0).collect();
    let mut expected = vec![0.0f32; (PIXELS * 4) as usize];
    let host = Conv::new(&matrix, &shape, &options).unwrap();
    let mut on_host = host.workspace(2, image, 1).unwrap();
    host.forward(&x, &mut expected, 2, image, &mut on_host, &LinearRun::default()).unwrap();

    let layer = DeviceConv::new(&matrix, &shape, &options, 0).unwrap();
    let bytes = layer.workspace_bytes(2, image).unwrap();
    let workspace = driver.memory(bytes as usize) as *mut c_void;
    let y = driver.memory((PIXELS * 4 * 4) as usize);
    let how = DeviceRun::default();
    let run = |x: &[f32]| {
        let x = driver.write(x) as *const f32;
        // SAFETY: memory of the device of these sizes, which is never given back; check_input waits.
        unsafe {
            layer.forward(x, PIXELS * 3, y as *mut f32, PIXELS * 4, 2, image, workspace, bytes, &how).unwrap();
            layer.check_input(workspace, bytes, 2, image, ptr::null_mut())
        }
    };
    run(&x).unwrap();
    assert_eq!(driver.read::<f32>(y, (PIXELS * 4) as usize), expected);
    x[(30 + 2 * 6 + 5) * 3 + 1] = f32::NAN;
    let refused = host.forward(&x, &mut expected, 2, image, &mut on_host, &LinearRun::default());
    let error = run(&x).unwrap_err();
    assert_eq!(error.message(), refused.unwrap_err().message());
    assert!(error.message().starts_with("x[1, 2, 5] has a NaN"), "{}", error);
    // SAFETY: refused before anything is launched.
    unsafe {
        let y = y as *mut f32;
        let host = layer.forward(x.as_ptr(), PIXELS * 3, y, PIXELS * 4, 2, image, workspace, bytes, &how);
        assert!(host.unwrap_err().message().starts_with("x "));
        let none = layer.forward(y, PIXELS * 3, y, PIXELS * 4, -1, image, workspace, bytes, &how);
        assert_eq!(none.unwrap_err().message(), "images is -1, must be 0..2147483647");
    }
}

#[test]
fn convolutions_of_codes_on_a_device() {
    let driver = device();
    let (matrix, shape) = of_three_by_three();
    let options = StaticLinearOptions {
        path: CpuPath::Default,
        input: Grid { bits: 5, is_signed: true, scale: Scale::Pow2(3), zero_point: 2 },
        output: Some(Grid { bits: 8, is_signed: false, scale: Scale::Pow2(4), zero_point: 100 }),
        bias: None,
        clamp: None,
        rounding: Rounding::NearestEven,
    };
    let added = Grid { bits: 8, is_signed: true, scale: Scale::Pow2(4), zero_point: -2 };
    let host = StaticConv::new(&matrix, &shape, &options, Some(added)).unwrap();
    let driver = match driver {
        Some(driver) => driver,
        None => return no_library(DeviceStaticConv::new(&host, 0)),
    };
    let image = ImageSize { rows: 5, columns: 6 };
    const PIXELS: i64 = 2 * 5 * 6;
    let mut x: Vec<i8> = (0..PIXELS * 3).map(|i| (i * 29 % 32 - 16) as i8).collect();
    let residual: Vec<i8> = (0..PIXELS * 4).map(|i| (i * 31 % 251 - 125) as i8).collect();
    let mut expected = vec![0u8; (PIXELS * 4) as usize];
    let mut on_host = host.workspace(2, image, 1).unwrap();
    host.forward_adding(&x, &residual, &mut expected, 2, image, &mut on_host, &LinearRun::default()).unwrap();

    let layer = DeviceStaticConv::new(&host, 0).unwrap();
    let bytes = layer.workspace_bytes(2, image).unwrap();
    let workspace = driver.memory(bytes as usize) as *mut c_void;
    let y = driver.memory((PIXELS * 4) as usize);
    let there = driver.write(&residual) as *const i8;
    let how = DeviceRun::default();
    let run = |x: &[i8]| {
        let x = driver.write(x) as *const i8;
        let y = y as *mut u8;
        // SAFETY: memory of the device of these sizes, which is never given back; check_input waits.
        unsafe {
            layer
                .forward_adding(x, PIXELS * 3, there, PIXELS * 4, y, PIXELS * 4, 2, image, workspace, bytes, &how)
                .unwrap();
            layer.check_input(workspace, bytes, ptr::null_mut())
        }
    };
    run(&x).unwrap();
    assert_eq!(driver.read::<u8>(y, (PIXELS * 4) as usize), expected);
    x[7 * 3 + 2] = 16;
    let outside = host.forward_adding(&x, &residual, &mut expected, 2, image, &mut on_host, &LinearRun::default());
    assert_eq!(run(&x).unwrap_err().message(), outside.unwrap_err().message());
    // SAFETY: refused before anything is launched.
    unsafe {
        let y = y as *mut u8;
        let missing = layer.forward(there, PIXELS * 3, y, PIXELS * 4, 2, image, workspace, bytes, &how);
        assert!(missing.unwrap_err().message().starts_with("layer: residual has 0 bytes"));
        let wrong = layer.forward(y, PIXELS * 3, y, PIXELS * 4, 2, image, workspace, bytes, &how);
        assert_eq!(wrong.unwrap_err().message(), "x is u8, must be s8");
        let count = PIXELS * 4;
        let wrong = layer.forward_adding(there, PIXELS * 3, y, count, y, count, 2, image, workspace, bytes, &how);
        assert_eq!(wrong.unwrap_err().message(), "residual is u8, must be s8");
        let host = layer.forward_adding(x.as_ptr(), 180, there, count, y, count, 2, image, workspace, bytes, &how);
        assert!(host.unwrap_err().message().starts_with("x "));
    }
}

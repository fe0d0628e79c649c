// SPDX-License-Identifier: Apache-2.0
//! Linear layers on a CUDA device against those on the host. Without a device only refusals are tested, unless
//! ISOBIT_REQUIRE names cuda. ISOBIT_CUDA_LIBRARY names libisobit_cuda.so.
use std::ffi::CString;
use std::os::raw::{c_char, c_int, c_uint, c_void};
use std::ptr;

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

#[test]
fn layers_on_a_device() {
    let options = LinearOptions { activations: Activations::Int8, ..Default::default() };
    let error = DeviceLinear::new(&matrix(), &LinearOptions { path: CpuPath::Scalar, ..options }, 0).unwrap_err();
    assert_eq!(error.message(), "options->cpu_path is 2, must be ISOBIT_CPU_DEFAULT, 0, for a device");

    let driver = match Driver::open() {
        Some(driver) => driver,
        None => {
            let required = std::env::var("ISOBIT_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|name| name == "cuda"), "ISOBIT_REQUIRE names cuda: no device");
            std::env::set_var("ISOBIT_CUDA_LIBRARY", "/nowhere/cuda.so");
            let error = DeviceLinear::new(&matrix(), &options, 0).unwrap_err();
            assert_eq!(error.code(), StatusCode::Unsupported);
            assert!(error.message().contains("/nowhere/cuda.so"), "{}", error);
            return;
        }
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

// SPDX-License-Identifier: Apache-2.0
//! The safe interface on what needs no file of a model: tables, weights and layers against values that follow from
//! their definition, refusals by name, and use from several threads. GRUs: examples/g2p.rs, which
//! examples/c/g2p_c_test.py compares with the program in C, and codes, states and chunks: tests/gru.rs.
use std::sync::Arc;
use std::thread;

use isobit::*;

fn message<T>(result: Result<T>) -> String {
    result.err().expect("must be refused").to_string()
}

fn options(bits: BitWidth, group: i64) -> LowBitOptions {
    LowBitOptions { bits, group, kind: Kind::Symmetric, method: Method::Absmax, scales: ScaleType::F32 }
}

/// Weights that 4 bits hold exactly: S = 1 as the largest magnitude of a row is 7, or -8.
fn exact_weights(rows: i64, columns: i64) -> Vec<f32> {
    (0..rows * columns).map(|i| if i % columns == 0 { 7.0 } else { ((i * 5 + i / columns) % 15 - 7) as f32 }).collect()
}

#[test]
fn tables_follow_their_function() {
    let table = Table::builtin("relu", TableModel::F32, false).unwrap();
    assert_eq!(table.function(), "relu");
    let x = [-2.0f32, -0.0, 0.5, 3.0];
    let mut y = [9.0f32; 4];
    table.run(&x, &mut y, None).unwrap();
    assert_eq!(y, [0.0, 0.0, 0.5, 3.0]);
    let mut half = [F16(0); 4];
    table.run(&x, &mut half, Some(&Pool::new(2).unwrap())).unwrap();
    assert_eq!(half[2..], [F16(0x3800), F16(0x4200)]);
    let certificate = Table::builtin("silu", TableModel::F32, false).unwrap().certificate().unwrap();
    assert!(certificate.max_ulp > 0.0 && certificate.share_within_ulp > certificate.share_exact);

    assert_eq!(message(table.run(&x, &mut y[..3], None)), "y has 3 elements, must have 4 as x has");
    let mut codes = [0i8; 4];
    let error = table.run(&x, &mut codes, None).unwrap_err();
    assert_eq!(error.code(), StatusCode::Unsupported);
    assert!(error.message().contains("y is of type s8"), "{}", error);
    assert!(message(Table::builtin("nothing", TableModel::F32, false)).contains("must be one of"));
    assert!(message(Table::builtin("a\0b", TableModel::F32, false)).contains("zero byte"));
    assert_eq!(Table::load("/nowhere/t").unwrap_err().code(), StatusCode::Io);
}

#[test]
fn weights_are_quantised_saved_and_read() {
    let weights = exact_weights(3, 16);
    let matrix = LowBitMatrix::quantize(&weights, 3, 16, &options(BitWidth::Four, 16), None).unwrap();
    let info = *matrix.info();
    assert_eq!((info.bits, info.rows, info.columns, info.group, info.groups, info.row_bytes), (4, 3, 16, 16, 1, 8));
    assert_eq!((info.kind, info.scales), (Kind::Symmetric, ScaleType::F32));
    for kind in [Kind::ZeroPoint, Kind::Offset] {
        for scales in [ScaleType::F16, ScaleType::Bf16] {
            let how = LowBitOptions { kind, method: Method::Minmax, scales, ..options(BitWidth::Four, 8) };
            let info = *LowBitMatrix::quantize(&weights, 3, 16, &how, None).unwrap().info();
            assert_eq!((info.kind, info.scales, info.groups), (kind, scales, 2));
        }
    }
    assert_eq!(matrix.dequantize(None).unwrap(), weights);
    let path = std::env::temp_dir().join(format!("isobit-rust-{}.safetensors", std::process::id()));
    matrix.save("fc", &path).unwrap();
    let loaded = LowBitMatrix::load(&path, Some("fc")).unwrap();
    let refused = LowBitMatrix::load(&path, Some("other"));
    let arrays = Arrays::load(&path);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(loaded.info(), matrix.info());
    assert_eq!(loaded.dequantize(None).unwrap(), weights);
    assert!(message(refused).contains("must be one of: \"fc\""));
    let arrays = arrays.unwrap();
    let (scales, shape) = arrays.get::<f32>("fc.scales").unwrap();
    assert_eq!((scales, shape), (&[1.0f32; 3][..], vec![3, 1]));
    assert_eq!(message(arrays.get::<f64>("fc.scales")), "fc.scales is f64, must be f32");

    let refused = |weights: &[f32], rows, group| {
        message(LowBitMatrix::quantize(weights, rows, 16, &options(BitWidth::Four, group), None))
    };
    assert_eq!(refused(&weights[1..], 3, 16), "weights has 47 elements, must have 3 * 16");
    assert_eq!(refused(&[], 0, 16), "rows is 0, must be 1..2147483647");
    assert_eq!(refused(&weights, 3, 5), "weights: group is 5, must be K, 16, or a multiple of 8 below it");
    assert_eq!(refused(&[f32::NAN; 16], 1, 16), "weights[0, 0] is nan, must be finite");
}

#[test]
fn layers_give_the_sums() {
    let weights = exact_weights(3, 16);
    let matrix = LowBitMatrix::quantize(&weights, 3, 16, &options(BitWidth::Four, 16), None).unwrap();
    let x: Vec<f32> = (0..32).map(|i| (i % 7) as f32 - 3.0).collect();
    let bias = [0.5f32, -1.0, 0.0];
    let expected: Vec<f32> = (0..6)
        .map(|i| {
            let (m, n) = (i / 3, i % 3);
            (0..16).map(|k| x[m * 16 + k] * weights[n * 16 + k]).sum::<f32>() + bias[n]
        })
        .collect();
    let layer = Linear::new(&matrix, &LinearOptions { bias: Some(&bias), ..Default::default() }).unwrap();
    assert_eq!((layer.rows(), layer.columns()), (3, 16));
    assert!(layer.kernel().starts_with("float_") && layer.size_bytes() > 0 && layer.path() != CpuPath::Default);
    let mut workspace = layer.workspace(2, 1).unwrap();
    let mut y = [0.0f32; 6];
    layer.forward(&x, &mut y, 2, &mut workspace, &LinearRun::default()).unwrap();
    assert_eq!(y[..], expected[..]); // small integers: exact in any order

    let clamp = Some((0.0, 6.0));
    let clamped = Linear::new(
        &matrix,
        &LinearOptions { bias: Some(&bias), clamp, path: CpuPath::Reference, ..Default::default() },
    );
    let run = LinearRun { y_stride: 4, ..Default::default() };
    let mut gaps = [-9.0f32; 7];
    clamped.unwrap().forward(&x, &mut gaps, 2, &mut workspace, &run).unwrap();
    for (i, value) in gaps.iter().enumerate() {
        let (m, n) = (i / 4, i % 4);
        assert_eq!(*value, if n < 3 { expected[m * 3 + n].max(0.0).min(6.0) } else { -9.0 });
    }

    let mut untouched = [-9.0f32; 6];
    let mut refused =
        |x: &[f32], y: &mut [f32], m| message(layer.forward(x, y, m, &mut workspace, &LinearRun::default()));
    assert_eq!(
        refused(&x[1..], &mut untouched, 2),
        "x has 124 bytes, must have at least 128: 2 rows of 16 elements of f32, 16 from one to the next"
    );
    assert_eq!(
        refused(&x, &mut untouched[1..], 2),
        "y has 20 bytes, must have at least 24: 2 rows of 3 elements of f32, 3 from one to the next"
    );
    assert_eq!(refused(&x, &mut untouched, -1), "m is -1, must be 0..2147483647");
    assert_eq!(untouched, [-9.0; 6]);
    let refused = |bias, clamp| message(Linear::new(&matrix, &LinearOptions { bias, clamp, ..Default::default() }));
    assert_eq!(refused(Some(&[]), None), "bias is empty, must be None or have N elements");
    assert_eq!(refused(Some(&bias[1..]), None), "layer: bias has 2 elements, must have 3 or none");
    assert_eq!(refused(None, Some((1.0, 0.0))), "layer: clamp.lo is 1, must be at most clamp.hi, 0");
}

#[test]
fn int8_layers_are_the_same_on_every_path() {
    let weights: Vec<f32> = (0..5 * 64).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
    let x: Vec<f32> = (0..2 * 64).map(|i| ((i * 29 % 97) as f32 - 40.0) / 16.0).collect();
    for bits in [BitWidth::One, BitWidth::Two, BitWidth::Four, BitWidth::Eight] {
        let matrix = LowBitMatrix::quantize(&weights, 5, 64, &options(bits, 32), None).unwrap();
        let mut results = Vec::new();
        for path in [CpuPath::Default, CpuPath::Reference] {
            let options = LinearOptions { activations: Activations::Int8, path, ..Default::default() };
            let layer = Linear::new(&matrix, &options).unwrap();
            let mut y = [0.0f32; 10];
            layer.forward(&x, &mut y, 2, &mut layer.workspace(2, 1).unwrap(), &LinearRun::default()).unwrap();
            results.push(y);
        }
        assert_eq!(results[0], results[1]);
        assert!(results[0].iter().any(|value| *value != 0.0));
    }
}

#[test]
fn static_layers_are_integers() {
    let weights: Vec<f32> = (0..32).map(|i| if i % 16 == 0 { 127.0 } else { (i * 11 % 60) as f32 - 30.0 }).collect();
    let matrix = LowBitMatrix::quantize(&weights, 2, 16, &options(BitWidth::Eight, 16), None).unwrap();
    let input = Grid { bits: 8, is_signed: true, scale: Scale::Pow2(0), zero_point: 2 };
    let options = StaticLinearOptions {
        path: CpuPath::Default,
        input,
        output: None,
        bias: None,
        clamp: None,
        rounding: Rounding::NearestEven,
    };
    let layer = StaticLinear::new(&matrix, &options).unwrap();
    assert_eq!((layer.rows(), layer.columns()), (2, 16));
    assert!(layer.kernel().starts_with("static_") && layer.path() != CpuPath::Default);
    let x: Vec<i8> = (0..16).map(|i| i * 3 - 20).collect();
    let mut y = [0i32; 2];
    let mut workspace = layer.workspace(1, 1).unwrap();
    layer.forward(&x, &mut y, 1, &mut workspace, &LinearRun::default()).unwrap();
    for n in 0..2 {
        let sum: i32 = (0..16).map(|k| (i32::from(x[k]) - 2) * weights[n * 16 + k] as i32).sum();
        assert_eq!(y[n], sum);
    }
    let mut wrong = [0i8; 2];
    let run = LinearRun::default();
    assert_eq!(message(layer.forward(&x, &mut wrong, 1, &mut workspace, &run)), "y is s8, must be s32");
    let mut untouched = [-9; 2];
    assert_eq!(
        message(layer.forward(&x[1..], &mut untouched, 1, &mut workspace, &run)),
        "x has 15 bytes, must have at least 16: 1 rows of 16 elements of s8, 16 from one to the next"
    );
    assert_eq!(
        message(layer.forward(&x, &mut untouched[1..], 1, &mut workspace, &run)),
        "y has 4 bytes, must have at least 8: 1 rows of 2 elements of s32, 2 from one to the next"
    );
    assert_eq!(untouched, [-9; 2]);
    let missing = StaticLinear::load("/nowhere/fc.safetensors", None, CpuPath::Default);
    assert_eq!(missing.unwrap_err().code(), StatusCode::Io);
    let wide = Grid { bits: 16, is_signed: false, scale: Scale::Pow2(0), zero_point: 40000 };
    let layer = StaticLinear::new(&matrix, &StaticLinearOptions { input: wide, ..options }).unwrap();
    let mut workspace = layer.workspace(1, 1).unwrap();
    let x: Vec<u16> = (0..16).map(|i| i * 4000).collect();
    layer.forward(&x, &mut y, 1, &mut workspace, &LinearRun::default()).unwrap();
    for n in 0..2 {
        let sum: i32 = (0..16).map(|k| (i32::from(x[k]) - 40000) * weights[n * 16 + k] as i32).sum();
        assert_eq!(y[n], sum);
    }
    let refused = |input, bias| message(StaticLinear::new(&matrix, &StaticLinearOptions { input, bias, ..options }));
    assert_eq!(refused(Grid { bits: 17, ..input }, None), "layer: input: bits is 17, must be 2..16");
    assert_eq!(refused(input, Some(&[0.5])), "layer: bias has 1 elements, must have 2 or none");
}

#[test]
fn threads_share_layers_and_have_errors_of_their_own() {
    let weights = exact_weights(3, 16);
    let matrix = LowBitMatrix::quantize(&weights, 3, 16, &options(BitWidth::Four, 16), None).unwrap();
    let layer = Arc::new(Linear::new(&matrix, &LinearOptions::default()).unwrap());
    drop(matrix); // the layer has packed it
    let threads: Vec<_> = (0..4)
        .map(|id| {
            let layer = Arc::clone(&layer);
            thread::spawn(move || {
                let mut workspace = layer.workspace(1, 1).unwrap();
                let mut x = [0.0f32; 16];
                x[id] = 1.0;
                let mut y = [0.0f32; 3];
                layer.forward(&x, &mut y, 1, &mut workspace, &LinearRun::default()).unwrap();
                let refused = Table::builtin(&format!("function {}", id), TableModel::F32, false);
                (id, y, message(refused))
            })
        })
        .collect();
    for thread in threads {
        let (id, y, text) = thread.join().unwrap();
        for n in 0..3 {
            assert_eq!(y[n], weights[n * 16 + id]);
        }
        assert!(text.contains(&format!("function {}", id)), "{}", text);
    }
}

#[test]
fn version_paths_and_pools() {
    assert_eq!(version(), env!("CARGO_PKG_VERSION"));
    CpuPath::Reference.check().unwrap();
    assert_eq!(Pool::new(3).unwrap().threads(), 3);
    assert_eq!(message(Pool::new(-1)), "threads is -1, must be 0..1024");
}

#[test]
fn models_that_are_not_there() {
    let error = Gru::load("/nowhere/gru.safetensors", None).unwrap_err();
    assert_eq!(error.code(), StatusCode::Io);
    assert!(error.message().contains("/nowhere/gru.safetensors"));
}

// SPDX-License-Identifier: Apache-2.0
//! Convolutions of both kinds, streams and pools of the safe interface against sums that follow from their definition,
//! and refusals by name.
use isobit::*;

fn message<T>(result: Result<T>) -> String {
    result.err().expect("must be refused").to_string()
}

/// 8-bit weights that are the codes themselves: S = 1 as the largest magnitude of a row is 127.
fn exact_weights(outputs: i64, depth: i64) -> Vec<f32> {
    (0..outputs * depth).map(|i| if i % depth == 0 { 127.0 } else { ((i * 37 + 5) % 101 - 50) as f32 }).collect()
}

fn matrix_of(weights: &[f32], outputs: i64, depth: i64) -> LowBitMatrix {
    let options = LowBitOptions {
        bits: BitWidth::Eight,
        group: depth,
        kind: Kind::Symmetric,
        method: Method::Absmax,
        scales: ScaleType::F32,
    };
    LowBitMatrix::quantize(weights, outputs, depth, &options, None).unwrap()
}

const INPUT: Grid = Grid { bits: 8, is_signed: true, scale: Scale::Pow2(0), zero_point: 3 };
const OUTPUT: Grid = Grid { bits: 8, is_signed: false, scale: Scale::Real(90.0), zero_point: 100 };
const ADDED: Grid = Grid { bits: 8, is_signed: true, scale: Scale::Pow2(-5), zero_point: -2 };

fn options(path: CpuPath, output: Option<Grid>) -> StaticLinearOptions<'static> {
    StaticLinearOptions { path, input: INPUT, output, bias: None, clamp: None, rounding: Rounding::NearestEven }
}

fn codes(count: i64) -> Vec<i8> {
    (0..count).map(|i| ((i * 29 + i / 7) % 251 - 125) as i8).collect()
}

const SHAPE: ConvShape = ConvShape {
    channels: 4,
    outputs: 6,
    groups: 2,
    rows: ConvAxis { kernel: 3, stride: 2, dilation: 1, pad_before: 1, pad_after: 0, more: 0 },
    columns: ConvAxis { kernel: 2, stride: 1, dilation: 2, pad_before: 0, pad_after: 1, more: 0 },
    transposed: false,
};
const IMAGE: ImageSize = ImageSize { rows: 5, columns: 4 };

/// Codes as the numbers that sums are of.
fn terms(x: &[i8]) -> Vec<i32> {
    x.iter().map(|code| i32::from(*code) - 3).collect()
}

/// Sums `[B, P, Q, O]` of SHAPE.
fn sums(x: &[i32], weights: &[f32], images: i64, size: ImageSize) -> Vec<i32> {
    let s = SHAPE;
    let mut out = Vec::new();
    for b in 0..images {
        for p in 0..size.rows {
            for q in 0..size.columns {
                for o in 0..s.outputs {
                    let (mut sum, mut k) = (0, o * 12);
                    for r in 0..s.rows.kernel {
                        for t in 0..s.columns.kernel {
                            let i = p * s.rows.stride + r - s.rows.pad_before;
                            let j = q + t * s.columns.dilation;
                            for c in 0..2 {
                                if (0..IMAGE.rows).contains(&i) && (0..IMAGE.columns).contains(&j) {
                                    let at = ((b * IMAGE.rows + i) * IMAGE.columns + j) * 4 + o / 3 * 2 + c;
                                    sum += x[at as usize] * weights[k as usize] as i32;
                                }
                                k += 1;
                            }
                        }
                    }
                    out.push(sum);
                }
            }
        }
    }
    out
}

/// Every block of two channels, and so every image, has the largest magnitude 127: 8-bit codes are the numbers.
fn exact_images(images: i64) -> Vec<i32> {
    let count = images as i32 * 5 * 4 * 4;
    (0..count).map(|i| if i % 2 == 0 { 127 - i * 7 % 38 / 19 * 254 } else { i * 29 % 201 - 100 }).collect()
}

#[test]
fn float_images_give_the_sums() {
    let x = exact_images(2);
    let floats: Vec<f32> = x.iter().map(|value| *value as f32).collect();
    let doubles: Vec<f64> = x.iter().map(|value| f64::from(*value)).collect();
    let bias = [0.5f32, -1.0, 0.0, 2.0, -0.25, 7.0];
    let (lo, hi) = (-25000.0, 25000.0);
    let pool = Pool::new(2).unwrap();
    for activations in [Activations::Float, Activations::Int8, Activations::Int8PerImage] {
        for (rows, columns) in [(6, 12), (36, 2)] {
            if activations == Activations::Int8PerImage && rows == 36 {
                continue; // takes one group for each output
            }
            let weights = exact_weights(rows, columns);
            let matrix = matrix_of(&weights, rows, columns);
            for path in [CpuPath::Default, CpuPath::Reference] {
                let options = LinearOptions { activations, path, bias: Some(&bias), clamp: Some((lo, hi)) };
                let layer = Conv::new(&matrix, &SHAPE, &options).unwrap();
                assert_eq!((layer.shape(), layer.activations()), (SHAPE, activations));
                assert_ne!(layer.path(), CpuPath::Default);
                let size = layer.output_size(IMAGE).unwrap();
                assert_eq!(size, ImageSize { rows: 2, columns: 3 });
                let expected: Vec<f32> = sums(&x, &weights, 2, size)
                    .into_iter()
                    .enumerate()
                    .map(|(i, sum)| (sum as f32 + bias[i % 6]).max(lo).min(hi))
                    .collect();
                assert!(expected.contains(&lo) && expected.contains(&hi));
                assert!(expected.iter().filter(|value| lo < **value && **value < hi).count() > 36);
                let mut workspace = layer.workspace(2, IMAGE, 2).unwrap();
                let mut y = [0.0f32; 2 * 2 * 3 * 6];
                layer.forward(&floats, &mut y, 2, IMAGE, &mut workspace, &LinearRun::default()).unwrap();
                assert_eq!(y[..], expected[..]);
                let run = LinearRun { y_stride: 7, pool: Some(&pool), ..Default::default() };
                let mut gaps = [-9.0f32; 12 * 7 - 1];
                if activations == Activations::Float {
                    layer.forward(&floats, &mut gaps, 2, IMAGE, &mut workspace, &run).unwrap();
                } else {
                    layer.forward(&doubles, &mut gaps, 2, IMAGE, &mut workspace, &run).unwrap();
                }
                for (i, value) in gaps.iter().enumerate() {
                    assert_eq!(*value, if i % 7 < 6 { expected[i / 7 * 6 + i % 7] } else { -9.0 });
                }
            }
        }
    }
}

#[test]
fn asymmetric_float_images_are_the_same_on_every_path() {
    let options = LowBitOptions {
        bits: BitWidth::Four,
        group: 12,
        kind: Kind::ZeroPoint,
        method: Method::Minmax,
        scales: ScaleType::F16,
    };
    let matrix = LowBitMatrix::quantize(&exact_weights(6, 12), 6, 12, &options, None).unwrap();
    let x: Vec<f32> = (0..80).map(|i| ((i * 29 % 97) as f32 - 40.0) / 16.0).collect();
    let mut results = Vec::new();
    for path in [CpuPath::Default, CpuPath::Reference] {
        let options = LinearOptions { activations: Activations::Int8Asymmetric, path, ..Default::default() };
        let layer = Conv::new(&matrix, &SHAPE, &options).unwrap();
        assert_eq!(layer.activations(), Activations::Int8Asymmetric);
        let mut y = [F16(0); 36];
        let mut workspace = layer.workspace(1, IMAGE, 1).unwrap();
        layer.forward(&x, &mut y, 1, IMAGE, &mut workspace, &LinearRun::default()).unwrap();
        results.push(y);
    }
    assert_eq!(results[0], results[1]);
    assert!(results[0].iter().any(|value| *value != results[0][0]));
}

#[test]
fn float_refusals_name_the_argument() {
    let matrix = matrix_of(&exact_weights(6, 12), 6, 12);
    let int8 = LinearOptions { activations: Activations::Int8, ..Default::default() };
    let per_image = LinearOptions { activations: Activations::Int8PerImage, ..Default::default() };
    let new = |shape: &ConvShape, options: &LinearOptions| message(Conv::new(&matrix, shape, options));
    assert_eq!(
        new(&ConvShape { groups: 4, ..SHAPE }, &int8),
        "shape: groups is 4, must be a divisor of 4 channels and 6 outputs"
    );
    assert_eq!(
        new(&ConvShape { groups: 1, ..SHAPE }, &int8),
        "layer: weights are [6, 12], must be [36, 4] (O * R * S, C / groups), or [6, 24] with one group a row"
    );
    assert_eq!(
        new(&SHAPE, &LinearOptions { bias: Some(&[]), ..int8 }),
        "bias is empty, must be None or have N elements"
    );
    assert_eq!(
        new(&SHAPE, &LinearOptions { bias: Some(&[1.0]), ..int8 }),
        "layer: bias has 1 elements, must have 6 or none"
    );
    let rows = matrix_of(&exact_weights(36, 2), 36, 2);
    assert_eq!(
        message(Conv::new(&rows, &SHAPE, &per_image)),
        "layer: weights are [36, 2] with 1 groups a row, must be [6, 12] with 1 for int8_per_image"
    );
    assert_eq!(message(Linear::new(&matrix, &per_image)), "options->activations is 3, must be 0..2");

    let layer = Conv::new(&matrix, &SHAPE, &int8).unwrap();
    let mut workspace = layer.workspace(1, IMAGE, 1).unwrap();
    let run = LinearRun::default();
    let mut x = [1.0f32; 80];
    let mut y = [-9.0f32; 36];
    assert_eq!(
        message(layer.forward(&x[1..], &mut y, 1, IMAGE, &mut workspace, &run)),
        "x has 316 bytes, must have at least 320: 20 rows of 4 elements of f32, 4 from one to the next"
    );
    assert_eq!(
        message(layer.forward(&x, &mut y[1..], 1, IMAGE, &mut workspace, &run)),
        "y has 140 bytes, must have at least 144: 6 rows of 6 elements of f32, 6 from one to the next"
    );
    assert_eq!(
        message(layer.forward(&x, &mut y, -1, IMAGE, &mut workspace, &run)),
        "images is -1, must be 0..2147483647"
    );
    let error = layer.forward(&[0i8; 80], &mut y, 1, IMAGE, &mut workspace, &run).unwrap_err();
    assert_eq!(error.code(), StatusCode::Unsupported);
    assert_eq!(error.message(), "x is of type s8, must be f32, f16, bf16 or f64");
    assert_eq!(
        message(layer.output_size(ImageSize { rows: 5, columns: 1 })),
        "layer: columns: dilation * (kernel - 1) + 1 is 3, must be at most the padded image, 2"
    );
    assert_eq!(message(layer.workspace(1, IMAGE, 0)), "threads is 0, must be 1..1024");
    x[(4 + 2) * 4] = f32::NAN; // pixel (1, 2)
    assert_eq!(
        message(layer.forward(&x, &mut y, 1, IMAGE, &mut workspace, &run)),
        "x[0, 1, 2] has a NaN, an infinity, or a block of channels whose range is infinite, must be finite, or the \
         call unchecked"
    );
    assert_eq!(y, [-9.0; 36]);
    let unchecked = LinearRun { unchecked: true, ..run };
    layer.forward(&x, &mut y, 1, IMAGE, &mut workspace, &unchecked).unwrap();
    for (i, value) in y.iter().enumerate() {
        let (column, output) = (i / 6 % 3, i % 6);
        assert_eq!(value.is_nan(), column != 1 && output < 3, "{}", i); // of the first group, at r = 2 and r = 0
    }
}

#[test]
fn convolutions_give_the_sums() {
    let weights = exact_weights(6, 12);
    let matrix = matrix_of(&weights, 6, 12);
    let x = codes(2 * 5 * 4 * 4);
    for path in [CpuPath::Default, CpuPath::Reference] {
        let layer = StaticConv::new(&matrix, &SHAPE, &options(path, None), None).unwrap();
        assert_eq!(layer.shape(), SHAPE);
        assert_eq!((layer.input(), layer.output(), layer.residual()), (INPUT, None, None));
        assert_ne!(layer.path(), CpuPath::Default);
        let size = layer.output_size(IMAGE).unwrap();
        assert_eq!(size, ImageSize { rows: 2, columns: 3 });
        let expected = sums(&terms(&x), &weights, 2, size);
        let mut workspace = layer.workspace(2, IMAGE, 2).unwrap();
        let mut y = [0i32; 2 * 2 * 3 * 6];
        layer.forward(&x, &mut y, 2, IMAGE, &mut workspace, &LinearRun::default()).unwrap();
        assert_eq!(y[..], expected[..]);
        let pool = Pool::new(2).unwrap();
        let run = LinearRun { y_stride: 7, pool: Some(&pool), ..Default::default() };
        let mut gaps = [-9i32; 12 * 7 - 1];
        layer.forward(&x, &mut gaps, 2, IMAGE, &mut workspace, &run).unwrap();
        for (i, value) in gaps.iter().enumerate() {
            assert_eq!(*value, if i % 7 < 6 { expected[i / 7 * 6 + i % 7] } else { -9 });
        }
    }
}

#[test]
fn residuals_are_added_before_the_clamp() {
    let weights = exact_weights(6, 12);
    let matrix = matrix_of(&weights, 6, 12);
    let x = codes(5 * 4 * 4);
    let added = codes(2 * 3 * 6);
    let mut y = [0u8; 36];
    let layer = StaticConv::new(&matrix, &SHAPE, &options(CpuPath::Default, Some(OUTPUT)), Some(ADDED)).unwrap();
    assert_eq!((layer.output(), layer.residual()), (Some(OUTPUT), Some(ADDED)));
    let mut workspace = layer.workspace(1, IMAGE, 1).unwrap();
    let run = LinearRun::default();
    layer.forward_adding(&x, &added, &mut y, 1, IMAGE, &mut workspace, &run).unwrap();
    let size = layer.output_size(IMAGE).unwrap();
    for (i, sum) in sums(&terms(&x), &weights, 1, size).into_iter().enumerate() {
        // Each rescale errs by half at most, so the sum by less than one from the real number.
        let real = (f64::from(sum) + f64::from(i32::from(added[i]) + 2) * 32.0) / 90.0 + 100.0;
        assert!((f64::from(y[i]) - real.max(0.0).min(255.0)).abs() <= 1.0, "{}: {} is not {}", i, y[i], real);
    }
    let untouched = y;
    assert_eq!(
        message(layer.forward(&x, &mut y, 1, IMAGE, &mut workspace, &run)),
        "layer: residual has 0 bytes, must be codes as y: the layer adds a residual"
    );
    let wrong = [0u8; 36];
    assert_eq!(
        message(layer.forward_adding(&x, &wrong, &mut y, 1, IMAGE, &mut workspace, &run)),
        "residual is u8, must be s8"
    );
    let plain = StaticConv::new(&matrix, &SHAPE, &options(CpuPath::Default, Some(OUTPUT)), None).unwrap();
    assert_eq!(
        message(plain.forward_adding(&x, &added, &mut y, 1, IMAGE, &mut workspace, &run)),
        "residual is given, but the layer adds none"
    );
    assert_eq!(y, untouched);
    assert_eq!(
        message(StaticConv::new(&matrix, &SHAPE, &options(CpuPath::Default, None), Some(ADDED))),
        "residual is a grid, must be NULL where options->has_output is 0"
    );
}

#[test]
fn chunks_give_the_whole() {
    let shape = ConvShape {
        channels: 3,
        outputs: 2,
        columns: ConvAxis { kernel: 3, stride: 2, pad_before: 2, ..Default::default() },
        ..Default::default()
    };
    let matrix = matrix_of(&exact_weights(2, 9), 2, 9);
    let layer = StaticConv::new(&matrix, &shape, &options(CpuPath::Default, Some(OUTPUT)), Some(ADDED)).unwrap();
    let x = codes(12 * 3);
    let added = codes(6 * 2);
    let image = ImageSize { rows: 1, columns: 12 };
    let run = LinearRun::default();
    let mut whole = [0u8; 12];
    layer.forward_adding(&x, &added, &mut whole, 1, image, &mut layer.workspace(1, image, 1).unwrap(), &run).unwrap();
    let stream = layer.stream().unwrap();
    let other = layer.stream().unwrap();
    drop(layer);
    let mut state = stream.state(1, 6).unwrap();
    let mut workspace = stream.workspace(1, 6, 1).unwrap();
    for _ in 0..2 {
        let mut y = [0u8; 12];
        let mut first = 0;
        for columns in [4, 6, 2] {
            let (from, to) = (first / 2 * 2, (first + columns) / 2 * 2);
            stream
                .forward_adding(
                    &x[first * 3..(first + columns) * 3],
                    &added[from..to],
                    &mut y[from..to],
                    columns as i64,
                    &mut state,
                    &mut workspace,
                    &run,
                )
                .unwrap();
            first += columns;
        }
        assert_eq!(y, whole);
        state.reset().unwrap();
    }
    let mut y = [0u8; 12];
    assert_eq!(
        message(stream.forward(&x, &mut y, 12, &mut state, &mut workspace, &run)),
        "layer: columns is 12, must be 0 to 6, those of the state, and a multiple of the stride, 2"
    );
    assert_eq!(
        message(other.forward(&x, &mut y, 4, &mut state, &mut workspace, &run)),
        "state was made by another stream"
    );
    assert_eq!(message(stream.state(0, 6)), "layer: images is 0, must be 1 to 2147483647");
    let square =
        StaticConv::new(&matrix_of(&exact_weights(6, 12), 6, 12), &SHAPE, &options(CpuPath::Default, None), None);
    assert_eq!(
        message(square.unwrap().stream()),
        "layer: rows have a kernel, a stride or pads, must have none in a stream"
    );
}

#[test]
fn pools_take_the_largest_and_the_average() {
    let axis = ConvAxis { kernel: 2, stride: 2, ..Default::default() };
    let mut options = StaticPoolOptions {
        kind: PoolKind::Max,
        rows: axis,
        columns: axis,
        input: INPUT,
        output: None,
        counts_outside: false,
        rounding: Rounding::Floor,
    };
    let image = ImageSize { rows: 4, columns: 6 };
    let x = codes(4 * 6 * 3);
    let run = LinearRun::default();
    let at = |p: usize, q: usize, c: usize| i32::from(x[(p * 6 + q) * 3 + c]);
    for kind in [PoolKind::Max, PoolKind::Average] {
        options.kind = kind;
        let pool = StaticPool::new(&options).unwrap();
        assert_eq!(pool.output_size(image).unwrap(), ImageSize { rows: 2, columns: 3 });
        let mut y = [0i8; 18];
        pool.forward(&x, &mut y, 1, image, 3, &run).unwrap();
        for (i, value) in y.iter().enumerate() {
            let (p, q, c) = (i / 9 * 2, i / 3 % 3 * 2, i % 3);
            let window = [at(p, q, c), at(p, q + 1, c), at(p + 1, q, c), at(p + 1, q + 1, c)];
            let expected = match kind {
                PoolKind::Max => *window.iter().max().unwrap(),
                PoolKind::Average => (window.iter().sum::<i32>() - 12).div_euclid(4) + 3,
            };
            assert_eq!(i32::from(*value), expected);
        }
        let mut wrong = [0u8; 18];
        assert_eq!(message(pool.forward(&x, &mut wrong, 1, image, 3, &run)), "y is u8, must be s8");
        let mut untouched = [-9i8; 18];
        assert_eq!(
            message(pool.forward(&x[1..], &mut untouched, 1, image, 3, &run)),
            "x has 71 bytes, must have at least 72: 24 rows of 3 elements of s8, 3 from one to the next"
        );
        assert_eq!(untouched, [-9; 18]);
    }
    options.kind = PoolKind::Max;
    options.output = Some(OUTPUT);
    assert_eq!(
        message(StaticPool::new(&options)),
        "layer: output is another grid than input, must be the same for the largest code"
    );
    options.output = Some(Grid { bits: 0, is_signed: false, scale: Scale::Pow2(0), zero_point: 0 });
    assert_eq!(message(StaticPool::new(&options)), "output.bits is 0, must be 2..=16");
    options.output = None;
    options.rows.pad_before = 2;
    assert_eq!(message(StaticPool::new(&options)), "layer: rows has a pad of 2, must be smaller than its window, 2");
}

#[test]
fn refusals_name_the_argument() {
    let matrix = matrix_of(&exact_weights(6, 12), 6, 12);
    let new = |shape: &ConvShape| message(StaticConv::new(&matrix, shape, &options(CpuPath::Default, None), None));
    assert_eq!(
        new(&ConvShape { groups: 4, ..SHAPE }),
        "shape: groups is 4, must be a divisor of 4 channels and 6 outputs"
    );
    assert_eq!(
        new(&ConvShape { groups: 1, ..SHAPE }),
        "matrix has 12 columns, must have 3 * 2 * 4 (R * S * C / groups)"
    );
    let layer = StaticConv::new(&matrix, &SHAPE, &options(CpuPath::Default, None), None).unwrap();
    let mut workspace = layer.workspace(1, IMAGE, 1).unwrap();
    let run = LinearRun::default();
    let x = codes(80);
    let mut y = [-9i32; 36];
    let mut wrong = [0u8; 36];
    assert_eq!(message(layer.forward(&x, &mut wrong, 1, IMAGE, &mut workspace, &run)), "y is u8, must be s32");
    assert_eq!(
        message(layer.forward(&x, &mut y[1..], 1, IMAGE, &mut workspace, &run)),
        "y has 140 bytes, must have at least 144: 6 rows of 6 elements of s32, 6 from one to the next"
    );
    assert_eq!(
        message(layer.forward(&x, &mut y, -1, IMAGE, &mut workspace, &run)),
        "images is -1, must be 0..2147483647"
    );
    let unchecked = LinearRun { unchecked: true, ..run };
    assert_eq!(
        message(layer.forward(&x, &mut y, 1, IMAGE, &mut workspace, &unchecked)),
        "options->unchecked is 1, must be 0..0"
    );
    assert_eq!(y, [-9; 36]);
    assert_eq!(
        message(layer.output_size(ImageSize { rows: 5, columns: 1 })),
        "layer: columns: dilation * (kernel - 1) + 1 is 3, must be at most the padded image, 2"
    );
    let missing = StaticConv::load("/nowhere/conv.safetensors", None, CpuPath::Default);
    assert_eq!(missing.unwrap_err().code(), StatusCode::Io);
}

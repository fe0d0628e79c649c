// SPDX-License-Identifier: Apache-2.0
//! GRUs on the model of one layer 256 -> 256 that ISOBIT_TEST_GRU names; tests/rust_test.py makes one.
use isobit::*;

const UNITS: usize = 256;

fn model() -> Gru {
    let path = std::env::var("ISOBIT_TEST_GRU").expect("tests/rust_test.py sets ISOBIT_TEST_GRU");
    Gru::load(path, Some("enc")).unwrap()
}

fn inputs(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 % 211) as f32 - 105.0) / 1000.0).collect()
}

#[test]
fn streams_as_it_runs() {
    let gru = model();
    let info = gru.info();
    assert_eq!((info.layers, info.directions, info.input_size, info.output_size), (1, 1, 256, 256));
    let (steps, batch) = (5, 2);
    let row = batch * UNITS;
    let x = inputs(steps * row);
    let run = GruRun::default();
    let mut workspace = gru.workspace(batch as i64, steps as i64, 2).unwrap();
    assert!(workspace.size_bytes() > 0);
    let mut state = gru.state(batch as i64).unwrap();
    let mut whole = vec![0.0; x.len()];
    gru.forward(&x, &mut whole, steps as i64, &mut state, &mut workspace, &run).unwrap();
    assert!(whole.iter().any(|value| *value != 0.0));
    assert_eq!(state.get().unwrap(), whole[(steps - 1) * row..]);

    let mut y = vec![0.0; x.len()];
    let mut saved = gru.state(batch as i64).unwrap();
    state.reset().unwrap();
    gru.forward(&x[..2 * row], &mut y[..2 * row], 2, &mut state, &mut workspace, &run).unwrap();
    saved.copy_from(&state).unwrap();
    for state in [&mut state, &mut saved] {
        y[2 * row..].fill(0.0);
        let pool = Pool::new(2).unwrap();
        let run = GruRun { path: CpuPath::Reference, pool: Some(&pool), whole_sequence: true, ..Default::default() };
        gru.forward(&x[2 * row..], &mut y[2 * row..], 3, state, &mut workspace, &run).unwrap();
        assert_eq!(y, whole);
    }
    // A state that is set to its own numbers is the same.
    let h = saved.get().unwrap();
    state.reset().unwrap();
    state.set(&h).unwrap();
    assert_eq!(state.get().unwrap(), h);
}

#[test]
fn codes_are_those_of_the_numbers() {
    let gru = model();
    let grid = *gru.info();
    let (scale, zero) = match grid.output_grid {
        Grid { scale: Scale::Pow2(shift), zero_point, .. } => ((-shift as f32).exp2(), zero_point),
        other => panic!("{:?}", other),
    };
    assert_eq!((grid.input_type, grid.output_type), ("s8", "s8"));
    let codes: Vec<i8> = (0..UNITS).map(|i| (i as u8) as i8).collect();
    let in_scale = match grid.input_grid.scale {
        Scale::Pow2(shift) => (-shift as f32).exp2(),
        Scale::Real(scale) => scale,
    };
    let x: Vec<f32> = codes.iter().map(|q| (i64::from(*q) - grid.input_grid.zero_point) as f32 * in_scale).collect();
    let mut workspace = gru.workspace(1, 1, 1).unwrap();
    let (mut a, mut b) = (gru.state(1).unwrap(), gru.state(1).unwrap());
    let mut y = [0.0f32; UNITS];
    let mut y_codes = [0i8; UNITS];
    gru.forward(&x, &mut y, 1, &mut a, &mut workspace, &GruRun::default()).unwrap();
    gru.forward_codes(&codes, &mut y_codes, 1, &mut b, &mut workspace, &GruRun::default()).unwrap();
    for (value, code) in y.iter().zip(y_codes) {
        assert_eq!(*value, (i64::from(code) - zero) as f32 * scale);
    }
    let wrong: Vec<i16> = vec![0; UNITS];
    let error = gru.forward_codes(&wrong, &mut y_codes, 1, &mut b, &mut workspace, &GruRun::default()).unwrap_err();
    assert_eq!(error.message(), "x is s16, must be s8");
}

#[test]
fn refusals_name_the_argument() {
    let gru = model();
    let mut state = gru.state(1).unwrap();
    let mut workspace = gru.workspace(1, 1, 1).unwrap();
    let x = inputs(UNITS);
    let mut y = vec![-1.0; UNITS];
    let mut text = |x: &[f32], steps, run: &GruRun| {
        gru.forward(x, &mut y, steps, &mut state, &mut workspace, run).unwrap_err().to_string()
    };
    assert!(text(&x[1..], 1, &GruRun::default()).contains("x has 255 elements, must have 1 * 1 * 256"));
    assert!(text(&x, -1, &GruRun::default()).contains("steps is -1"));
    let run = GruRun { lengths: Some(&[]), ..Default::default() };
    assert_eq!(text(&x, 1, &run), "lengths is empty, must be None or have elements");
    let run = GruRun { lengths: Some(&[2]), ..Default::default() };
    assert!(text(&x, 1, &run).contains("lengths[0] is 2, must be 0..1"));
    let run = GruRun { zoneout_mask: Some(&[1, 1]), ..Default::default() };
    assert!(text(&x, 1, &run).contains("zoneout mask has 2 values"));
    let other = model();
    let error = other.forward(&x, &mut y, 1, &mut state, &mut workspace, &GruRun::default()).unwrap_err();
    assert!(error.message().contains("state was made by another model"), "{}", error);
    assert_eq!(y, vec![-1.0; UNITS]);
    assert!(gru.state(-1).unwrap_err().message().contains("batch is -1"));
    let path = std::env::var("ISOBIT_TEST_GRU").unwrap();
    assert!(Gru::load(path, Some("nobody")).unwrap_err().message().contains("nobody"));
}

#[test]
fn becomes_c() {
    let path = std::env::var("ISOBIT_TEST_GRU").unwrap();
    let folder = std::env::temp_dir().join(format!("isobit-rust-export-{}", std::process::id()));
    let options = ExportOptions { target: Target::CortexM4, name: Some("enc"), ..Default::default() };
    let info = export_c(&path, Some("enc"), &folder, &options).unwrap();
    assert_eq!(info.multiply_adds, 3 * 256 * 512);
    assert!(info.weights_bytes >= info.multiply_adds && info.state_bytes == 256);
    for file in ["enc.h", "enc.c", "enc_data.c", "enc.cmake"] {
        assert!(folder.join(file).is_file(), "{}", file);
    }
    let again = export_c(&path, Some("enc"), &folder, &options).unwrap_err();
    assert_eq!(again.code(), StatusCode::InvalidArgument);
    assert!(again.message().contains("not empty"), "{}", again.message());
    export_c(&path, Some("enc"), &folder, &ExportOptions { force: true, ..options }).unwrap();
    let wrong = export_c(&path, None, folder.join("other"), &ExportOptions { name: Some("2fast"), ..options });
    assert!(wrong.unwrap_err().message().contains("2fast"));
    assert!(!folder.join("other").exists());
    std::fs::remove_dir_all(folder).unwrap();
}

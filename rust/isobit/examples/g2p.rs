// SPDX-License-Identifier: Apache-2.0
//! English spelling to phonemes: the two GRUs of g2p_en as integer models, and its output layer with 4-bit weights and
//! 8-bit activations. The same program as examples/c/g2p_c.c, whose README.md says where the files come from.
use std::env;
use std::process::exit;

use isobit::*;

const UNITS: usize = 256;
const GRAPHEMES: usize = 29;
const GRAPHEME_END: usize = 2;
const GRAPHEME_A: usize = 3;
const PHONEME_START: usize = 2;
const PHONEME_END: usize = 3;
const MAX_LETTERS: usize = 64;
const MAX_PHONEMES: usize = 20;

#[rustfmt::skip]
const PHONEMES: [&str; 74] = [
    "<pad>", "<unk>", "<s>", "</s>", "AA0", "AA1", "AA2", "AE0", "AE1", "AE2", "AH0", "AH1", "AH2", "AO0", "AO1",
    "AO2",   "AW0",   "AW1", "AW2",  "AY0", "AY1", "AY2", "B",   "CH",  "D",   "DH",  "EH0", "EH1", "EH2", "ER0",
    "ER1",   "ER2",   "EY0", "EY1",  "EY2", "F",   "G",   "HH",  "IH0", "IH1", "IH2", "IY0", "IY1", "IY2", "JH",
    "K",     "L",     "M",   "N",    "NG",  "OW0", "OW1", "OW2", "OY0", "OY1", "OY2", "P",   "R",   "S",   "SH",
    "T",     "TH",    "UH0", "UH1",  "UH2", "UW",  "UW0", "UW1", "UW2", "V",   "W",   "Y",   "Z",   "ZH",
];

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn array<'a>(arrays: &'a Arrays, name: &str, shape: &[usize]) -> Result<&'a [f32]> {
    let (values, found) = arrays.get::<f32>(name)?;
    if !found.iter().map(|&size| size as usize).eq(shape.iter().copied()) {
        return Err(format!("{name} has the shape {found:?}, must have {shape:?}").into());
    }
    Ok(values)
}

fn gru(path: &str) -> Result<Gru> {
    let gru = Gru::load(path, None)?;
    let info = gru.info();
    match (info.layers, info.directions, info.input_size as usize, info.hidden_size as usize) {
        (1, 1, UNITS, UNITS) => Ok(gru),
        _ => Err(format!("{path} must be one layer 256 -> 256 of one direction").into()),
    }
}

fn largest(values: &[f32]) -> usize {
    (1..values.len()).fold(0, |best, i| if values[i] > values[best] { i } else { best })
}

fn run(arguments: &[String]) -> Result<()> {
    let (checkpoint, encoder, decoder, words) = match arguments {
        [checkpoint, encoder, decoder, words @ ..] if !words.is_empty() => (checkpoint, encoder, decoder, words),
        _ => return Err("usage: g2p CHECKPOINT.npz ENCODER.safetensors DECODER.safetensors WORD...".into()),
    };
    let arrays = Arrays::load(checkpoint)?;
    let letters = array(&arrays, "enc_emb", &[GRAPHEMES, UNITS])?;
    let sounds = array(&arrays, "dec_emb", &[PHONEMES.len(), UNITS])?;
    let rows = array(&arrays, "fc_w", &[PHONEMES.len(), UNITS])?;
    let bias = array(&arrays, "fc_b", &[PHONEMES.len()])?;
    let (encoder, decoder) = (gru(encoder)?, gru(decoder)?);

    let weights = LowBitOptions {
        bits: BitWidth::Four,
        group: 64,
        kind: Kind::Symmetric,
        method: Method::Mse,
        scales: ScaleType::F32,
    };
    let matrix = LowBitMatrix::quantize(rows, PHONEMES.len() as i64, UNITS as i64, &weights, None)?;
    let options = LinearOptions { activations: Activations::Int8, bias: Some(bias), ..Default::default() };
    let output = Linear::new(&matrix, &options)?;

    let mut heard = encoder.state(1)?;
    let mut said = decoder.state(1)?;
    let mut encoder_workspace = encoder.workspace(1, MAX_LETTERS as i64 + 1, 1)?;
    let mut decoder_workspace = decoder.workspace(1, 1, 1)?;
    let mut output_workspace = output.workspace(1, 1)?;

    for word in words {
        if word.is_empty() || word.len() > MAX_LETTERS || !word.bytes().all(|c| c.is_ascii_lowercase()) {
            return Err(format!("{word}: a word must be 1 to 64 letters a-z").into());
        }
        let codes = word.bytes().map(|c| usize::from(c - b'a') + GRAPHEME_A).chain([GRAPHEME_END]);
        let x: Vec<f32> = codes.flat_map(|code| letters[code * UNITS..][..UNITS].iter().copied()).collect();
        let mut y = vec![0.0; x.len()];
        let steps = word.len() as i64 + 1;
        heard.reset()?;
        encoder.forward(&x, &mut y, steps, &mut heard, &mut encoder_workspace, &GruRun::default())?;
        said.hand_over_from(&heard)?;

        print!("{word}:");
        let mut phoneme = PHONEME_START;
        for _ in 0..MAX_PHONEMES {
            let x = &sounds[phoneme * UNITS..][..UNITS];
            let mut h = [0.0; UNITS];
            let mut scores = [0.0f32; PHONEMES.len()];
            decoder.forward(x, &mut h, 1, &mut said, &mut decoder_workspace, &GruRun::default())?;
            output.forward(&h, &mut scores, 1, &mut output_workspace, &LinearRun::default())?;
            phoneme = largest(&scores);
            if phoneme == PHONEME_END {
                break;
            }
            print!(" {}", PHONEMES[phoneme]);
        }
        println!();
    }
    Ok(())
}

fn main() {
    if let Err(error) = run(&env::args().skip(1).collect::<Vec<_>>()) {
        eprintln!("g2p: {error}");
        exit(2);
    }
}

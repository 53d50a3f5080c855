// An image in, its best labels out; or an array in, arrays out.
//
//   classify MODEL_FOLDER image.ppm              the five best labels (PPM or PGM; of others:
//   magick cat.jpg cat.ppm) classify MODEL_FOLDER input.bin output.bin   the first input's elements
//   as they lie in memory; so the first output's
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "farm_runner.h"

namespace {

struct Image {
  size_t width = 0, height = 0, channels = 0;
  std::vector<unsigned char> pixels;  // rows from the top, RGB or grey
};

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Binary PPM (P6) and PGM (P5) with 8 bits a sample: https://netpbm.sourceforge.net/doc/ppm.html
Image ReadImage(const std::string& path) {
  const std::string content = Content(path);
  size_t at = 2;
  auto number = [&]() -> size_t {
    while (at < content.size() &&
           (isspace(static_cast<unsigned char>(content[at])) || content[at] == '#')) {
      if (content[at] == '#') at = std::min(content.find('\n', at), content.size());
      ++at;
    }
    size_t value = 0;
    for (;
         at < content.size() && isdigit(static_cast<unsigned char>(content[at])) && value < 1000000;
         ++at) {
      value = value * 10 + static_cast<size_t>(content[at] - '0');
    }
    return value;
  };
  const std::string kind = content.substr(0, 2);
  Image image;
  image.channels = kind == "P6" ? 3 : kind == "P5" ? 1 : 0;
  image.width = number();
  image.height = number();
  const size_t largest = number(), nbytes = image.width * image.height * image.channels;
  if (!nbytes || largest != 255 || content.size() < ++at + nbytes)
    throw std::runtime_error(path + " is no binary PPM or PGM of 8 bits");
  image.pixels.assign(content.begin() + static_cast<std::ptrdiff_t>(at),
                      content.begin() + static_cast<std::ptrdiff_t>(at + nbytes));
  return image;
}

// The weights with which the pixels of a line make pixel `i` of a shorter or longer one: a
// triangle, as wide as the scale when it shrinks.
struct Taps {
  size_t first = 0;
  std::vector<double> weights;
};

Taps TapsOf(size_t i, size_t from, size_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to),
               reach = std::max(scale, 1.0);
  const double centre = (static_cast<double>(i) + 0.5) * scale;
  const size_t first = static_cast<size_t>(std::max(0.0, std::floor(centre - reach + 0.5)));
  const size_t last = std::min(from, static_cast<size_t>(std::floor(centre + reach + 0.5)));
  Taps taps{first, {}};
  for (size_t x = first; x < last; ++x)
    taps.weights.push_back(
        std::max(0.0, 1 - std::abs((static_cast<double>(x) + 0.5 - centre) / reach)));
  const double sum = std::accumulate(taps.weights.begin(), taps.weights.end(), 0.0);
  for (double& weight : taps.weights) weight /= sum;
  return taps;
}

// In the model's channels: "RGB", "BGR" or "L".
Image Converted(const Image& image, const std::string& channels) {
  Image result{image.width, image.height, channels.size(), {}};
  for (size_t i = 0; i < image.pixels.size(); i += image.channels) {
    const unsigned char* pixel = &image.pixels[i];
    const size_t green = image.channels / 2,
                 blue = image.channels - 1;  // of a grey image, all are its only one
    if (channels == "L") {
      result.pixels.push_back(static_cast<unsigned char>(
          (19595u * pixel[0] + 38470u * pixel[green] + 7471u * pixel[blue] + 32768u) >> 16));
    } else {
      const bool reversed = channels == "BGR";
      for (size_t at : {reversed ? blue : 0, green, reversed ? 0 : blue})
        result.pixels.push_back(pixel[at]);
    }
  }
  return result;
}

// The image with its columns as rows, `to` of them: resized in one direction (bilinear), to whole
// numbers. Twice, it is resized in both.
Image Resized(const Image& image, size_t to) {
  Image result{image.height, to, image.channels,
               std::vector<unsigned char>(image.height * to * image.channels)};
  for (size_t x = 0; x < to; ++x) {
    const Taps taps = TapsOf(x, image.width, to);
    for (size_t y = 0; y < image.height; ++y) {
      for (size_t c = 0; c < image.channels; ++c) {
        double sum = 0;
        for (size_t i = 0; i < taps.weights.size(); ++i) {
          sum += taps.weights[i] *
                 image.pixels[(y * image.width + taps.first + i) * image.channels + c];
        }
        result.pixels[(x * image.height + y) * image.channels + c] =
            static_cast<unsigned char>(std::lround(sum));
      }
    }
  }
  return result;
}

// The image of height x width: stretched to it or, with a crop, that share of it from its middle,
// in its own proportions.
Image Fitted(const Image& image, double crop, size_t height, size_t width) {
  if (crop <= 0) return Resized(Resized(image, width), height);
  auto wide = static_cast<size_t>(static_cast<double>(width) / crop),
       high = static_cast<size_t>(static_cast<double>(height) / crop);
  if (wide * image.height >= high * image.width) {  // the width is what is short
    high = std::max(height, wide * image.height / image.width);
  } else {
    wide = std::max(width, high * image.width / image.height);
  }
  const Image resized = Resized(Resized(image, wide), high);
  const auto left = static_cast<size_t>(std::nearbyint(static_cast<double>(wide - width) / 2));
  const auto top = static_cast<size_t>(std::nearbyint(static_cast<double>(high - height) / 2));
  Image result{width, height, image.channels, {}};
  for (size_t y = top; y < top + height; ++y) {
    const auto begin =
        resized.pixels.begin() + static_cast<std::ptrdiff_t>((y * wide + left) * image.channels);
    result.pixels.insert(result.pixels.end(), begin,
                         begin + static_cast<std::ptrdiff_t>(width * image.channels));
  }
  return result;
}

// The image as the model's input, of height x width: resized, scaled to [0, 1], normalised.
std::vector<float> InputOf(const Image& image, const farm::ImageRules& rules, size_t height,
                           size_t width) {
  const Image resized = Fitted(Converted(image, rules.channels), rules.crop, height, width);
  const size_t count = resized.channels;
  std::vector<float> input;
  for (size_t i = 0; i < count * height * width; ++i) {
    const size_t c = rules.layout == "NCHW" ? i / (height * width) : i % count;
    const size_t pixel = rules.layout == "NCHW" ? i % (height * width) : i / count;
    const float mean = static_cast<float>(rules.mean[c % rules.mean.size()]),
                deviation = static_cast<float>(rules.std[c % rules.std.size()]);
    input.push_back((static_cast<float>(resized.pixels[pixel * count + c]) / 255.0f - mean) /
                    deviation);
  }
  return input;
}

void PrintBest(const std::vector<float>& scores, const std::vector<std::string>& labels) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  order.resize(std::min<size_t>(order.size(), 5));
  for (size_t i : order)
    printf("%10.4f  %s\n", scores[i],
           i < labels.size() ? labels[i].c_str() : std::to_string(i).c_str());
}

int Classify(farm::Runner& runner, const std::string& path) {
  const farm::TensorInfo &input = runner.inputs().at(0), &output = runner.outputs().at(0);
  const bool planes = runner.image_rules().layout == "NCHW";
  const size_t channels = runner.image_rules().channels.size();
  if (runner.inputs().size() != 1 || input.shape.size() != 4 || input.dtype != "float32" ||
      output.dtype != "float32" || static_cast<size_t>(input.shape[planes ? 1 : 3]) != channels ||
      input.shape[0] != 1) {
    throw std::runtime_error("this model does not take one image of float32");
  }
  const std::vector<float> pixels = InputOf(ReadImage(path), runner.image_rules(),
                                            static_cast<size_t>(input.shape[planes ? 2 : 1]),
                                            static_cast<size_t>(input.shape[planes ? 3 : 2]));
  runner.SetInput(input.name, pixels.data(), pixels.size() * sizeof(float));
  runner.Run();
  std::vector<float> scores(runner.OutputBytes(output.name) / sizeof(float));
  runner.GetOutput(output.name, scores.data(), scores.size() * sizeof(float));
  PrintBest(scores, runner.labels());
  return 0;
}

int RunRaw(farm::Runner& runner, const std::string& from, const std::string& to) {
  const std::string content = Content(from);
  runner.SetInput(runner.inputs().at(0).name, content.data(), content.size());
  runner.Run();
  const std::string& name = runner.outputs().at(0).name;
  std::string result(runner.OutputBytes(name), '\0');
  runner.GetOutput(name, &result[0], result.size());
  std::ofstream file(to, std::ios::binary);
  if (!file.write(result.data(), static_cast<std::streamsize>(result.size())).flush())
    throw std::runtime_error("cannot write " + to);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::cerr << "usage: " << argv[0] << " MODEL_FOLDER image.ppm\n       " << argv[0]
              << " MODEL_FOLDER input.bin output.bin\n";
    return 2;
  }
  try {
    farm::Runner runner(argv[1]);
    return argc == 3 ? Classify(runner, argv[2]) : RunRaw(runner, argv[2], argv[3]);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}

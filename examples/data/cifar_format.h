#pragma once

#include <cstddef>

namespace examples {

/// CIFAR-100's binary format: records one behind the other, each a byte with the coarse label, one
/// with the fine label, and the red, then the green, then the blue pixels, row by row.
inline constexpr std::size_t kCifarSide = 32;
inline constexpr std::size_t kCifarPlaneBytes = kCifarSide * kCifarSide;
inline constexpr std::size_t kCifarImageBytes = 3 * kCifarPlaneBytes;
inline constexpr std::size_t kCifarLabelBytes = 2;
inline constexpr std::size_t kCifarRecordBytes = kCifarLabelBytes + kCifarImageBytes;
inline constexpr int kCifar100Classes = 100;
inline constexpr int kCifar100CoarseClasses = 20;

/// The files of a folder in that format. The names stand one a line, in the labels' order.
inline constexpr const char* kCifarTrainFile = "train.bin";
inline constexpr const char* kCifarTestFile = "test.bin";
inline constexpr const char* kCifarFineNamesFile = "fine_label_names.txt";

}  // namespace examples

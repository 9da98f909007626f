#include "lockstep/fetch/transfer_progress.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using std::chrono::milliseconds;

TEST(TransferProgress, ShowsThreeDigits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1000), "1.00 kB");
  EXPECT_EQ(bytes_text(99'949), "99.9 kB");
  EXPECT_EQ(bytes_text(99'951), "100 kB");
  EXPECT_EQ(bytes_text(168'513'733), "169 MB");
  EXPECT_EQ(bytes_text(999'600), "1.00 MB");
  EXPECT_EQ(bytes_text(18'446'744'073'709'551'615U), "18446744 TB");
}

TEST(TransferProgress, TellsShareAndRateWhereTheyAreKnown) {
  EXPECT_EQ(transfer_text("file", 12'300'000, 169'000'000, milliseconds(3000)),
            "file  12.3 MB of 169 MB (7 %), 4.10 MB/s");
  EXPECT_EQ(transfer_text("file", 500, 0, milliseconds(0)), "file  500 B");
}

}  // namespace
}  // namespace lockstep

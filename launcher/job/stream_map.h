#pragma once

#include <map>
#include <string>

namespace lockstep::inline internal {

/// Output streams of a worker. As a number: 0 none, 1 stdout, 2 stderr, 3 both.
struct Streams {
  bool out = false;
  bool err = false;

  bool any() const { return out || err; }
  friend Streams operator|(Streams a, Streams b) { return {a.out || b.out, a.err || b.err}; }
  friend bool operator==(Streams, Streams) = default;
};

/// Output streams by local rank: the value of --redirects and --tee.
class StreamMap {
 public:
  StreamMap() = default;
  /// The same for every rank.
  explicit StreamMap(Streams streams) : default_(streams) {}
  /// None for ranks that are not in the map.
  explicit StreamMap(std::map<int, Streams> by_local_rank)
      : by_local_rank_(std::move(by_local_rank)) {}

  Streams of(int local_rank) const;

 private:
  Streams default_;
  std::map<int, Streams> by_local_rank_;
};

/// Parses "3" or "0:1,1:2" (local rank:streams). `flag` names the flag in errors.
/// Errors: UsageError.
StreamMap parse_stream_map(const std::string& flag, const std::string& text);

}  // namespace lockstep::inline internal
